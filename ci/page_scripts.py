"""Sphinx extension: leave out scripts that a page does not need.

jupyter-book always loads thebe, which runs code on a server elsewhere, and loads
it twice, which is an error on the console of every page.  Nothing here uses it.
"""

from __future__ import annotations

__all__ = ["needed", "setup"]


def needed(scripts: list) -> list:
    """Drop thebe and repetitions.

    Parameters
    ----------
    scripts : list
        Sphinx's ``script_files``: names, or objects with `filename` and `attributes`.

    Returns
    -------
    list
        The rest, in order.
    """
    kept = {}
    for script in scripts:
        key = f"{getattr(script, 'filename', script)} {sorted(getattr(script, 'attributes', {}).items())}"
        if "thebe" not in key.lower():
            kept.setdefault(key, script)
    return list(kept.values())


def _clean(app, pagename, templatename, context, doctree) -> None:
    if "script_files" in context:
        context["script_files"][:] = needed(context["script_files"])


def setup(app) -> dict:
    """Called by Sphinx."""
    app.connect("html-page-context", _clean, priority=100_000)  # after all who add scripts
    return {"version": "1", "parallel_read_safe": True}
