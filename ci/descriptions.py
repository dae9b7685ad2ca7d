"""Sphinx extension: what a search engine and a link in a message say about a page.

A page's description is the beginning of its first paragraph: whole sentences, no
mathematics.  A chapter starts with its question, so that is what others get to read.
sphinxext-opengraph writes the tags.
"""

from __future__ import annotations

import html
import re

from docutils import nodes

__all__ = ["LONGEST", "describe", "setup"]

#: Characters; longer descriptions are cut off where they are shown.
LONGEST = 200


def describe(document: nodes.Node) -> str:
    """First sentences of a page.

    Parameters
    ----------
    document : docutils node
        The page.

    Returns
    -------
    str
        At most `LONGEST` characters; empty if there is no sentence that short.
    """
    for paragraph in document.findall(nodes.paragraph):
        if any(isinstance(above, (nodes.figure, nodes.Admonition, nodes.topic)) for above in _above(paragraph)):
            continue
        text = "".join(_text(paragraph)).removeprefix("Question. ")
        said = ""
        for sentence in re.split(r"(?<=[.?!]) +", " ".join(text.split())):
            if "\0" in sentence or len(said) + len(sentence) + 1 > LONGEST or not sentence.endswith((".", "?", "!")):
                break
            said = f"{said} {sentence}".strip()
        if said:
            return said
    return ""


def _above(node: nodes.Node):
    while node.parent is not None:
        node = node.parent
        yield node


def _text(paragraph: nodes.Node):
    """Its text, with a mark where the mathematics is."""
    for node in paragraph.findall():
        if isinstance(node, (nodes.math, nodes.math_block)):
            yield "\0"
        elif isinstance(node, nodes.Text) and not isinstance(node.parent, nodes.math):
            yield node.astext()


def _add(app, pagename, templatename, context, doctree) -> None:
    text = describe(doctree) if doctree is not None else ""
    if text:
        context["meta"] = {**(context.get("meta") or {}), "og:description": text}
        context["metatags"] += f'<meta name="description" content="{html.escape(text)}" />\n'


def setup(app) -> dict:
    """Called by Sphinx."""
    app.connect("html-page-context", _add, priority=100)  # before sphinxext-opengraph
    return {"version": "1", "parallel_read_safe": True}
