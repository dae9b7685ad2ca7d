"""Sphinx extension: pages whose text comes first, with markup that every reader can use.

*Scripts.*  jupyter-book always loads thebe, which runs code on a server elsewhere,
and loads it twice, which is an error on the console of every page.  Nothing here
uses it.  All other script files are deferred: the text of a page does not wait.

*Names and roles.*  A few pieces of HTML from the builders give a wrong account of
themselves to a screen reader: :data:`REPAIRS` puts that right.
"""

from __future__ import annotations

import re

__all__ = ["REPAIRS", "needed", "repaired", "setup"]

#: Pattern, replacement and why, for the body of every page.
REPAIRS = (
    # a fold is named by its text, "Show code cell source"; its label says something else
    (re.compile(r'<summary aria-label="[^"]*">'), "<summary>"),
    # picture files further down do not hold up the text
    (re.compile(r"<img(?! src=\"data:)(?![^>]*\bloading=)"), '<img loading="lazy"'),
    # a list must hold list items; the entries of a bibliography are none
    (re.compile(r'<div role="list" class="citation-list">'), '<div class="citation-list">'),
    (re.compile(r' role="doc-biblioentry"'), ""),
)
#: Scripts that inline scripts rely on: they have to run at once.
_AT_ONCE = "documentation_options.js"
#: A script that is always deferred.
_SLOW = "mathjax"


def needed(scripts: list, *, defer: bool = True) -> list:
    """Drop thebe and repetitions, defer the files that are left.

    Parameters
    ----------
    scripts : list
        Sphinx's ``script_files``: names, or objects with `filename` and `attributes`.
    defer : bool
        The search page needs its scripts at once.

    Returns
    -------
    list
        The rest, in order.
    """
    kept = {}
    for script in scripts:
        attributes = getattr(script, "attributes", None)
        name = str(getattr(script, "filename", script) or "")
        if name and attributes is not None and _SLOW not in name and _AT_ONCE not in name:
            # the builder shares these objects between pages: set it anew for each
            attributes.pop("defer", None)
            if defer:
                attributes["defer"] = "defer"
        key = f"{name} {sorted((attributes or {}).items())}"
        if "thebe" not in key.lower():
            kept.setdefault(key, script)
    return list(kept.values())


def repaired(body: str) -> str:
    """The body of a page with `REPAIRS` made."""
    for pattern, replacement in REPAIRS:
        body = pattern.sub(replacement, body)
    return body


def _clean(app, pagename, templatename, context, doctree) -> None:
    if "script_files" in context:
        context["script_files"][:] = needed(context["script_files"], defer=pagename != "search")
    if isinstance(context.get("body"), str):
        context["body"] = repaired(context["body"])


def setup(app) -> dict:
    """Called by Sphinx."""
    app.connect("html-page-context", _clean, priority=100_000)  # after all who add scripts
    return {"version": "1", "parallel_read_safe": True}
