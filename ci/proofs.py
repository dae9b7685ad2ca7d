"""Sphinx extension: give each proof of a page an anchor of its own.

sphinx-proof calls every one of them "proof", and an anchor must occur once.
"""

from __future__ import annotations

from docutils import nodes

__all__ = ["number_proofs", "setup"]


def number_proofs(doctree: nodes.document) -> None:
    """Change the second anchor ``proof`` to ``proof-2``, and so on.

    Parameters
    ----------
    doctree : docutils.nodes.document
        One page; changed in place.
    """
    seen: dict[str, int] = {}
    for node in doctree.findall(nodes.Element):
        for i, name in enumerate(node.get("ids", [])):
            if name in ("proof", "proof-content"):
                seen[name] = seen.get(name, 0) + 1
                if seen[name] > 1:
                    node["ids"][i] = f"{name}-{seen[name]}"


def setup(app) -> dict:
    """Called by Sphinx."""
    app.connect("doctree-read", lambda app, doctree: number_proofs(doctree))
    return {"version": "1", "parallel_read_safe": True}
