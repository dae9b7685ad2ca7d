"""Sphinx extension: the page of measured speeds, made from ``performance.json``.

    ```{performance-table} targets
    ```

shows the rows that have a target (``information``: the others; ``machine``: where
and with what they were measured),

    ```{performance-figure} tokens
    :alt: what the picture shows

    A caption.
    ```

draws a series, and {performance}`made.threads` is one number in a sentence.  Every
use checks the whole file first: see ``ci.bench.record``.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from docutils import nodes
from docutils.parsers.rst import directives
from matplotlib.figure import Figure
from sphinx.util.docutils import SphinxDirective, SphinxRole

from ci.bench import record, table
from ci.chapters import Tree, write_text
from csa_utils import style

__all__ = ["draw", "number", "setup", "table_html"]

_FILE = Path("book", "evidence", "performance.json")
#: Each role of a line: colour, marker, dashes.
_LOOKS = {
    "own": (style.COLOURS["token"], "o", "-"),
    "numpy": (style.COLOURS["third"], "s", (0, (5, 2))),
    "torch": (style.COLOURS["other"], "^", (0, (1, 1.4))),
    "dense": (style.COLOURS["control"], "D", (0, (5, 2, 1, 2))),
}
_CAPTIONS = {"targets": "Measured against a target", "information": "For information: adaptive solvers"}


def table_html(data: Mapping, kind: str) -> str:
    """A table of the page.

    Parameters
    ----------
    data : dict
        A checked record.
    kind : str
        "targets", "information" or "machine".

    Returns
    -------
    str
        HTML.

    Raises
    ------
    ValueError
        If there is no such table.
    """
    if kind == "machine":
        return table.machine_html(data["made"])
    if kind not in _CAPTIONS:
        raise ValueError(f"table must be one of {', '.join(_CAPTIONS)}, machine, got {kind!r}")
    rows = [row for row in data["rows"] if (row["target"] is not None) == (kind == "targets")]
    return table.rows_html(rows, _CAPTIONS[kind])


def number(data: Mapping, name: str) -> str:
    """One number of the record, as text.

    Parameters
    ----------
    data : dict
        A checked record.
    name : str
        "count.targets", "count.reached", "count.missed", "count.unmeasured", or the
        way to a number such as "made.rule.rounds".

    Returns
    -------
    str

    Raises
    ------
    ValueError
        If there is no such number.
    """
    with_target = [row for row in data["rows"] if row["target"] is not None]
    counts = {
        "targets": len(with_target),
        "reached": sum(row["reached"] is True for row in with_target),
        "missed": sum(row["reached"] is False for row in with_target),
        "unmeasured": sum(row["reached"] is None for row in with_target),
    }
    value = {"made": data["made"], "count": counts}
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, Mapping):
        raise ValueError(f"name must lead to a number of the record, got {name!r}")
    return f"{value:g}" if isinstance(value, float) else str(value)


def draw(series: Mapping) -> str:
    """A series on logarithmic axes: medians with quartiles.

    Parameters
    ----------
    series : dict
        From a checked record.

    Returns
    -------
    str
        SVG, the same for the same record.
    """
    with mpl.rc_context():
        style.use()
        figure = Figure(figsize=style.STANDARD)
        ax = figure.subplots()
        for line in series["lines"]:
            _draw_line(ax, line)
        measured = [point["at"] for line in series["lines"] for point in line["points"]]
        if not measured:
            ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", color=style.COLOURS["quiet"])
            ax.set(xticks=[], yticks=[])
        else:
            ax.set_yscale("log")
            # zero has a place of its own, left of the smallest other value
            least = min((at for at in measured if at > 0), default=1.0)
            ax.set_xscale("symlog", linthresh=least, linscale=0.5) if min(measured) <= 0 else ax.set_xscale("log")
        ax.set(title=series["title"], xlabel=series["across"], ylabel="seconds")
        if measured and min(measured) <= 0:
            ax.set_xlim(-0.2 * least, 1.5 * max(measured))  # no room for negative numbers
        ax.legend(loc="best")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _draw_line(ax, line: Mapping) -> None:
    colour, marker, dashes = _LOOKS[line["role"]]
    look = {"color": colour, "marker": marker, "linestyle": dashes}
    if not line["points"]:
        ax.plot([], [], label=f"{line['name']}: not measured", **look)
        return
    at = [point["at"] for point in line["points"]]
    median, lower, upper = (
        [point["seconds"][name] for point in line["points"]] for name in ("median", "lower", "upper")
    )
    ax.plot(at, median, label=line["name"], **look)
    ax.fill_between(at, lower, upper, color=colour, alpha=0.2, linewidth=0)


class _FromRecord(SphinxDirective):
    required_arguments = 1

    def record(self) -> dict:
        path = Path(self.env.srcdir) / _FILE
        self.env.note_dependency(str(path))
        try:
            return record.read(path)
        except ValueError as error:
            raise self.error(str(error)) from error


class PerformanceTable(_FromRecord):
    """``{performance-table}``: the argument is the kind of table."""

    def run(self) -> list[nodes.Node]:
        try:
            return [nodes.raw("", table_html(self.record(), self.arguments[0]), format="html")]
        except ValueError as error:
            raise self.error(str(error)) from error


class PerformanceFigure(_FromRecord):
    """``{performance-figure}``: the argument is the id of a series, the content a caption."""

    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012 (docutils' interface)

    def run(self) -> list[nodes.Node]:
        series = {one["id"]: one for one in self.record()["series"]}
        name = self.arguments[0]
        if name not in series:
            raise self.error(f"series must be one of {', '.join(series)}, got {name!r}")
        if "alt" not in self.options:
            raise self.error("a picture needs the option alt")
        tree = Tree(Path(self.env.srcdir))
        picture = tree.build / "performance" / f"{name}.svg"
        write_text(picture, draw(series[name]))
        figure = nodes.figure()
        figure += nodes.image(uri="/" + picture.relative_to(tree.root).as_posix(), alt=self.options["alt"])
        inline, messages = self.state.inline_text(" ".join(self.content), self.lineno)
        caption = nodes.caption()
        caption.extend(inline)
        figure += caption
        return [figure, *messages]


class PerformanceNumber(SphinxRole):
    """``{performance}``: one number of the record in a sentence."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        path = Path(self.env.srcdir) / _FILE
        self.env.note_dependency(str(path))
        try:
            return [nodes.Text(number(record.read(path), self.text))], []
        except ValueError as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]


def setup(app) -> dict:
    """Called by Sphinx."""
    app.add_directive("performance-table", PerformanceTable)
    app.add_directive("performance-figure", PerformanceFigure)
    app.add_role("performance", PerformanceNumber())
    return {"version": "1", "parallel_read_safe": True}
