"""Tables of all claims: on the report page, on the front page, and in README.md.

In a page, ``{claims}`` is the full table, chapter by chapter; with the option
``:summary:`` it is the short one.  For the README:

    python -m ci.claims_table README.md

rewrites what stands between ``<!-- claims:begin -->`` and ``<!-- claims:end -->``.
That table leaves the measured values out: their last digits differ between machines.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import nbformat
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from ci.chapters import Tree, write_text

__all__ = ["full_html", "main", "readme_table", "replace_between_markers", "setup", "summary_html"]

BEGIN, END = "<!-- claims:begin -->", "<!-- claims:end -->"


def full_html(claims: list[dict], titles: dict[str, str], link: Callable[[str], str]) -> str:
    """One table a chapter: statement, source, measured, expected, margin, verdict.

    Parameters
    ----------
    claims : list of dict
        From ``_build/claims.json``, chapter by chapter.
    titles : dict of str to str
        Title of each chapter.
    link : callable
        Chapter name -> address of its page, as seen from the page of the table.

    Returns
    -------
    str
        HTML.
    """
    head = ("Claim", "Source", "Measured", "Expected", "Margin", "Verdict")
    parts = []
    for chapter, group in groupby(claims, key=lambda claim: claim["chapter"]):
        rows = [
            (
                f'<a href="{_address(claim, link)}">{_e(claim["statement"])}</a>',
                f"{_e(claim['source'])}<br><small>{_e(claim['kind'])}</small>",
                _e(claim["measured_text"]),
                _e(claim["expected"]),
                _e(claim["margin_text"]),
                _verdict(claim),
            )
            for claim in group
        ]
        count = f"{len(rows)} claim{'s' if len(rows) != 1 else ''}"
        title = _e(titles.get(chapter, chapter))
        caption = f'<a href="{_e(link(chapter))}">{title}</a>: {count}'
        parts.append(_table(head, [_row(row, head) for row in rows], caption, f"Claims of the chapter {title}"))
    return "\n".join(parts)


def summary_html(claims: list[dict], titles: dict[str, str], link: Callable[[str], str]) -> str:
    """One short table of everything: source, statement, verdict, grouped by chapter.

    Parameters and result as in :func:`full_html`.
    """
    head = ("Source", "Statement", "Verdict")
    body = []
    for chapter, group in groupby(claims, key=lambda claim: claim["chapter"]):
        title = f'<a href="{_e(link(chapter))}">{_e(titles.get(chapter, chapter))}</a>'
        body.append(f'<tr><th colspan="{len(head)}" scope="rowgroup">{title}</th></tr>')
        body += [
            _row(
                (
                    _e(claim["source"]),
                    f'<a href="{_address(claim, link)}">{_e(claim["statement"])}</a>',
                    _verdict(claim),
                )
            )
            for claim in group
        ]
    return _table(head, body, f"All {len(claims)} claims of the book")


def readme_table(claims: list[dict]) -> str:
    """The Markdown table of README.md, the same on every machine.

    Parameters
    ----------
    claims : list of dict
        From ``_build/claims.json``.

    Returns
    -------
    str
        Markdown, ending in a line break.
    """
    lines = ["| Chapter | Source | Statement | Expected | Verdict |", "|---|---|---|---|---|"]
    for claim in claims:
        chapter = f"[{claim['chapter']}](book/{claim['chapter']}.ipynb)"
        cells = (chapter, claim["source"], claim["statement"], claim["expected"], claim["verdict"])
        lines.append("| " + " | ".join(_cell(text) for text in cells) + " |")
    return "\n".join(lines) + "\n"


def replace_between_markers(text: str, table: str) -> str:
    """Put a table between the two markers of a README.

    Parameters
    ----------
    text : str
        The whole file, holding each marker once, in order.
    table : str
        From `readme_table`.

    Returns
    -------
    str
        The new file.

    Raises
    ------
    ValueError
        If a marker is missing, doubled or out of order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"text must hold {BEGIN} and {END} once each, in this order")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n{END}{rest.split(END)[1]}"


class ClaimsDirective(SphinxDirective):
    """``{claims}``: the table of all claims, made from ``_build/claims.json``."""

    option_spec = {"summary": directives.flag}  # noqa: RUF012 (docutils' interface)

    def run(self) -> list[nodes.Node]:
        tree = Tree(Path(self.env.srcdir))
        self.env.note_dependency(str(tree.claims))
        if not tree.claims.exists():
            raise self.error("no _build/claims.json: not every chapter has passed; run: make book")
        claims = json.loads(tree.claims.read_text(encoding="utf8"))
        titles = {chapter: _title(tree.source(chapter)) for chapter in tree.chapters()}
        for chapter in titles:
            self.env.note_dependency(str(tree.source(chapter)))
        make = summary_html if "summary" in self.options else full_html
        return [nodes.raw("", make(claims, titles, self._link), format="html")]

    def _link(self, chapter: str) -> str:
        return self.env.app.builder.get_relative_uri(self.env.docname, f"book/{chapter}")


def setup(app) -> dict:
    """Called by Sphinx."""
    app.add_directive("claims", ClaimsDirective)
    return {"version": "1", "parallel_read_safe": True}


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the table of a README; returns 1 if it cannot."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1:
        print("usage: python -m ci.claims_table README.md", file=sys.stderr)
        return 2
    readme, claims = Path(arguments[0]), Tree().claims
    if not claims.exists():
        print("No _build/claims.json: not every chapter has passed; run: make book", file=sys.stderr)
        return 1
    table = readme_table(json.loads(claims.read_text(encoding="utf8")))
    try:
        write_text(readme, replace_between_markers(readme.read_text(encoding="utf8"), table))
    except (OSError, ValueError) as error:
        print(f"{readme}: {error}", file=sys.stderr)
        return 1
    return 0


def _title(source: Path) -> str:
    """First heading of a notebook."""
    for cell in nbformat.read(source, as_version=4).cells:
        found = re.search(r"^# +(.+?) *$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        if found:
            return found[1]
    return source.stem


def _row(cells, names=None) -> str:
    """A row; with names, each cell carries its own, for screens too narrow for columns."""
    if names is None:
        return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    named = zip(names, cells, strict=True)
    return "<tr>" + "".join(f'<td data-name="{_e(name)}">{cell}</td>' for name, cell in named) + "</tr>"


def _table(head, rows: list[str], caption: str, label: str = "Table of claims") -> str:
    header = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(rows)
    return (
        f'<div class="csa-claims" role="region" aria-label="{label}"><table>'
        f"<caption>{caption}</caption><thead><tr>{header}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _e(text: str) -> str:
    return html.escape(str(text))


def _address(claim: dict, link: Callable[[str], str]) -> str:
    return _e(f"{link(claim['chapter'])}#{claim['anchor']}")


def _verdict(claim: dict) -> str:
    mark, state = ("✓", "passed") if claim["passed"] else ("✗", "failed")
    return (
        f'<span class="csa-verdict-{state}"><span aria-hidden="true">{mark}</span>&nbsp;{_e(claim["verdict"])}</span>'
    )


def _cell(text: str) -> str:
    """Text for one cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
