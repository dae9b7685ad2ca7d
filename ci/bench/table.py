"""The measurements as tables: HTML for the book, plain text for the terminal."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

__all__ = ["machine_html", "plain", "ratio", "rows_html", "seconds"]

_HEAD = ("Work", "csa_utils", "Other", "Ratio", "Target", "Result")


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
    body = "\n".join(_row(row) for row in rows)
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEAD)
    return _framed(f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>", caption)


def machine_html(made: Mapping) -> str:
    """On what machine, with which versions, from which commit."""
    changed = ", with changes" if made["changed"] else ""
    facts = {
        "Processor": f"{made['processor']}, {made['system']}",
        "Cores": f"{made['cores']}; threads of each side: {made['threads']}",
        "Python": made["python"],
        **{name: version or "not installed" for name, version in made["versions"].items()},
        "Date": made["date"],
        "Commit": f"{made['commit'][:12]}{changed}",
    }
    body = "\n".join(f'<tr><th scope="row">{_e(name)}</th><td>{_e(value)}</td></tr>' for name, value in facts.items())
    return _framed(f"<tbody>{body}</tbody>", "The machine and the versions")


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


def _row(row: Mapping) -> str:
    checks = "".join(f"<br><small>{_e(_check(check))}</small>" for check in row["checks"])
    cells = (
        f"{_e(row['work'])}{checks}",
        _side(row["own"]),
        _side(row["peer"]),
        _e(_ratio_text(row)) if row["ratio"] else "–",
        _e(_target(row)) if row["target"] else "–",
        _verdict(row),
    )
    return "<tr>" + "".join(f'<td data-name="{n}">{c}</td>' for n, c in zip(_HEAD, cells, strict=True)) + "</tr>"


def _side(side: Mapping) -> str:
    if side["seconds"] is None:
        return f"–<br><small>{_e(side['what'])}</small>"
    time = side["seconds"]
    spread = f"{seconds(time['lower'])} to {seconds(time['upper'])}"
    steps = ""
    if side["steps_timed"] is not None:
        steps = f"; {side['steps_timed']} of {side['steps_in_run']} steps timed"
    return f"{_e(seconds(time['median']))}<br><small>{_e(spread + steps)}; {_e(side['what'])}</small>"


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
    said = _e(_result(row))
    if row["status"] != "measured":
        return f"{said}<br><small>{_e(row['reason'])}</small>"
    if row["reached"] is None:
        return said
    mark, state = ("✓", "passed") if row["reached"] else ("✗", "failed")
    return f'<span class="csa-verdict-{state}"><span aria-hidden="true">{mark}</span>&nbsp;{said}</span>'


def _framed(rows: str, caption: str) -> str:
    name = _e(caption)
    return (
        f'<div class="csa-claims" role="region" aria-label="{name}"><table>'
        f"<caption>{name}</caption>{rows}</table></div>"
    )


def _e(text) -> str:
    return html.escape(str(text))
