"""Sphinx directive ``{from-run}``: show an output of a judged run on another page.

    ```{from-run} model/causal_attention river
    :alt: what the picture shows

    A caption.
    ```

takes the output of the cell with the id ``river``: HTML as it is, an SVG picture as
a figure.  What the front page shows is then part of a run that was judged.

    python -m ci.from_run model/causal_attention river book/_static/cover.svg

writes the same picture to a file, for README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from ci.chapters import Tree, write_text

__all__ = ["main", "output", "setup"]


def output(tree: Tree, chapter: str, cell_id: str) -> tuple[str, str]:
    """MIME type and text of the HTML or SVG that a cell of a judged run shows.

    Raises
    ------
    ValueError
        If the chapter has not passed, has no such cell, or the cell shows neither.
    """
    executed = tree.executed(chapter)
    if not executed.exists():
        raise ValueError(f"chapter must have passed, got {chapter!r} without a run; run: make book")
    cells = [cell for cell in nbformat.read(executed, as_version=4).cells if cell.get("id") == cell_id]
    if not cells:
        raise ValueError(f"cell must be the id of a cell of {chapter}, got {cell_id!r}")
    for out in cells[0].get("outputs", []):
        for mime in ("text/html", "image/svg+xml"):
            if mime in out.get("data", {}):
                return mime, out["data"][mime]
    raise ValueError(f"cell must show HTML or an SVG picture, got {cell_id!r} of {chapter}")


class FromRun(SphinxDirective):
    """The directive: arguments are the chapter and the id of a cell."""

    required_arguments = 2
    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012 (docutils' interface)

    def run(self) -> list[nodes.Node]:
        tree = Tree(Path(self.env.srcdir))
        chapter, cell_id = self.arguments
        self.env.note_dependency(str(tree.executed(chapter)))
        try:
            mime, text = output(tree, chapter, cell_id)
        except ValueError as error:
            raise self.error(str(error)) from error
        if mime == "text/html":
            return [nodes.raw("", text, format="html")]
        if "alt" not in self.options:
            raise self.error("a picture needs the option alt")
        picture = tree.build / "from_run" / f"{chapter.replace('/', '-')}-{cell_id}.svg"
        write_text(picture, text)
        figure = nodes.figure()
        uri = "/" + picture.relative_to(tree.root).as_posix()
        figure += nodes.image(uri=uri, alt=self.options["alt"])
        if self.content:
            caption = nodes.caption()
            inline, messages = self.state.inline_text(" ".join(self.content), self.lineno)
            caption.extend(inline)
            figure += caption
            return [figure, *messages]
        return [figure]


def setup(app) -> dict:
    """Called by Sphinx."""
    app.add_directive("from-run", FromRun)
    return {"version": "1", "parallel_read_safe": True}


def main(arguments: list[str] | None = None) -> int:
    """Write a picture of a judged run to a file; returns 1 if there is none."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 3:
        print("usage: python -m ci.from_run CHAPTER CELL FILE", file=sys.stderr)
        return 2
    try:
        write_text(Path(arguments[2]), output(Tree(), arguments[0], arguments[1])[1])
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
