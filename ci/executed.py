"""Sphinx extension: render the run that was judged instead of the committed notebook.

Notebooks are committed without outputs.  When Sphinx reads one, this extension
hands it the executed copy that `ci.run_notebooks` left after the chapter passed.
A missing copy is a warning, hence an error of the strict build.
"""

from __future__ import annotations

import json
from pathlib import Path

from sphinx.util import logging

from ci.chapters import Tree

__all__ = ["setup", "without_widget_state"]

_log = logging.getLogger(__name__)


def _swap(app, docname: str, source: list[str]) -> None:
    tree = Tree(Path(app.srcdir))
    chapter = docname.removeprefix("book/")
    if not tree.source(chapter).exists():
        return  # a text page
    executed = tree.executed(chapter)
    app.env.note_dependency(str(executed))  # a new run of it makes the page out of date
    if executed.exists():
        source[0] = without_widget_state(executed.read_text(encoding="utf8"))
    else:
        _log.warning("%s has not passed, so there is nothing to show; run: make book", chapter)


def without_widget_state(text: str) -> str:
    """A notebook without what only a running kernel could use: a page shows films instead.

    Parameters
    ----------
    text : str
        A notebook file.

    Returns
    -------
    str
        The same, without the state of its ipywidgets.
    """
    notebook = json.loads(text)
    if notebook.get("metadata", {}).pop("widgets", None) is None:
        return text
    return json.dumps(notebook)


def setup(app) -> dict:
    """Called by Sphinx."""
    app.connect("source-read", _swap)
    return {"version": "1", "parallel_read_safe": True}
