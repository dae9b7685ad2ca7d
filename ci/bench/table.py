"""The measurements as tables: HTML for the book, plain text for the terminal."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence

__all__ = ["machine_html", "plain", "ratio", "rows_html", "seconds"]

#: Columns and their widths in percent.
_HEAD = {"Work": 43, "Ours": 14, "Other": 15, "Ratio": 12, "Result": 16}


def seconds(value: float) -> str:
    """A time with three digits and a unit that suits it."""
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 0.9995 or unit == "µs":
            return f"{_digits(value * factor)} {unit}"
    raise AssertionError


def ratio(value: float) -> str:
    """A ratio with three digits."""
    return _digits(value)


def _digits(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 99.95:
        return f"{float(f'{value:.3g}'):.0f}"
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def rows_html(rows: Sequence[Mapping], caption: str) -> str:
    """A table of rows of the record.

    Parameters
    ----------
    rows : sequence of dict
        From the record.
    caption : str
        What stands above it.

    Returns
    -------
    str
        HTML; every text in it is escaped.
    """
    # without targets there is nothing to be reached
    names = [name for name in _HEAD if name != "Result" or any(row["target"] for row in rows)]
    widths = "".join(f'<col style="width: {_HEAD[name]}%">' for name in names)
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "\n".join(_row(row, names) for row in rows)
    title = _e(caption)
    return (
        f'<div class="csa-claims" role="region" aria-label="{title}"><table><caption>{title}</caption>'
        f"<colgroup>{widths}</colgroup><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def machine_html(made: Mapping) -> str:
    """On what machine, with which versions, from which commit: a list."""
    changed = ", with changes" if made["changed"] else ""
    facts = {
        "Processor": f"{made['processor']}, {made['system']}",
        "Cores": f"{made['cores']}; threads of each side: {made['threads']}",
        "Python": made["python"],
        **{name: version or "not installed" for name, version in made["versions"].items()},
        "Date": made["date"],
        "Commit": f"{made['commit'][:12]}{changed}",
    }
    return "<ul>" + "".join(f"<li>{_e(name)}: {_e(value)}</li>" for name, value in facts.items()) + "</ul>"


def plain(data: Mapping) -> str:
    """The rows as lines of text."""
    lines = []
    for row in data["rows"]:
        if row["status"] == "measured":
            own, peer = (seconds(row[side]["seconds"]["median"]) for side in ("own", "peer"))
            said = f"{own} beside {peer}, {_ratio_text(row)}"
            said += f", target {_target(row)}: {_result(row)}" if row["target"] else ""
        else:
            said = f"not measured: {row['reason']}"
        lines.append(f"{row['id']:<20} {said}")
        lines += [f"{'':<20}   {_check(check)}" for check in row["checks"]]
    return "\n".join(lines)


def _row(row: Mapping, names: Sequence[str]) -> str:
    """A row; each cell carries its name, for screens too narrow for columns."""
    checks = "".join(_small(_check(check)) for check in row["checks"])
    if row["ratio"]:
        factor = _with_quartiles(row["ratio"], ratio)
    else:
        factor = "–" if "Result" in names else _verdict(row)
    cells = {
        "Work": _e(row["work"]) + _small(f"{row['own']['what']} beside {row['peer']['what']}") + checks,
        "Ours": _side(row["own"]),
        "Other": _side(row["peer"]),
        "Ratio": factor,
        "Result": _verdict(row),
    }
    return "<tr>" + "".join(f'<td data-name="{name}">{cells[name]}</td>' for name in names) + "</tr>"


def _side(side: Mapping) -> str:
    if side["seconds"] is None:
        return "–"
    said = _with_quartiles(side["seconds"], seconds)
    if side["steps_timed"] is not None:
        said += _small(f"{side['steps_timed']} of {side['steps_in_run']} steps timed")
    return said


def _with_quartiles(values: Mapping, as_text: Callable[[float], str]) -> str:
    return _e(as_text(values["median"])) + _small(f"{as_text(values['lower'])} to {as_text(values['upper'])}")


def _small(said: str) -> str:
    """A line below the first one of a cell; where a cell is a grid, below its value."""
    return f'<br><small style="grid-column: 2">{_e(said)}</small>'


def _ratio_text(row: Mapping) -> str:
    return "{} ({} to {})".format(*(ratio(row["ratio"][name]) for name in ("median", "lower", "upper")))


def _target(row: Mapping) -> str:
    return f"{row['target']['rule']} {row['target']['value']:g}"


def _check(check: Mapping) -> str:
    bound = "" if check["bound"] is None else f" (allowed {check['bound']:.0e}{'' if check['kept'] else ', exceeded'})"
    return f"{check['what']}: {check['value']:.1e}{bound}"


def _result(row: Mapping) -> str:
    if row["status"] != "measured":
        return "not measured"
    return {True: "reached", False: "missed", None: "measured"}[row["reached"]]


def _verdict(row: Mapping) -> str:
    said, target = _e(_result(row)), _small(f"target {_target(row)}") if row["target"] else ""
    if row["status"] != "measured":
        return f"{said}{target}{_small(row['reason'])}"
    if row["reached"] is None:
        return said
    mark, state = ("✓", "passed") if row["reached"] else ("✗", "failed")
    verdict = f'<span class="csa-verdict-{state}"><span aria-hidden="true">{mark}</span>&nbsp;{said}</span>'
    return f"{verdict}{target}"


def _e(text) -> str:
    return html.escape(str(text))
