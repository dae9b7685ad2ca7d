"""The file of measurements: how it is made, written, read and checked.

Times are kept as they were taken.  Everything else, quartiles, ratios and whether
a target is reached, is computed from them here, and computed again whenever the
file is read: a file whose numbers do not fit together is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.bench.measure import Work, ratios, summary
from ci.chapters import ROOT, write_text

__all__ = ["PATH", "check", "judged", "line", "not_measured", "read", "row", "text", "write"]

PATH = ROOT / "book" / "evidence" / "performance.json"

_ROW = {"id", "work", "settings", "own", "peer", "growth", "target"}
_ROW |= {"ratio", "rounds", "checks", "reached", "status", "reason"}
_SIDE = {"what", "steps_timed", "steps_in_run", "times", "seconds"}
_SERIES = {"id", "title", "across", "settings", "lines"}
_LINE = {"name", "role", "status", "reason", "points"}
_POINT = {"at", "steps_timed", "steps_in_run", "times", "seconds"}
_MADE = {"date", "commit", "changed", "processor", "cores", "threads"}
_MADE |= {"system", "python", "versions", "rule"}
_CHECK = {"what", "value", "bound", "kept"}
_MEASURED, _NOT_MEASURED = "measured", "not measured"


# Making


def judged(what: str, value: float, bound: float | None = None) -> dict:
    """A number that belongs to a row: an error, say, which must not exceed a bound."""
    value = float(value)
    return {"what": what, "value": value, "bound": bound, "kept": bound is None or value <= bound}


def row(about: Mapping, works: Mapping[str, Work], times: Mapping[str, Sequence[float]], checks: list[dict]) -> dict:
    """A measured row.

    Parameters
    ----------
    about : mapping
        ``id``, ``work``, ``own``, ``peer`` (texts), ``settings``, ``growth``, ``target``.
    works, times : mapping
        For ``"own"`` and ``"peer"``.
    checks : list of dict
        From `judged`.

    Returns
    -------
    dict
        For the record.
    """
    sides = {name: _timed({"what": about[name]}, works[name], times[name]) for name in ("own", "peer")}
    entry = {**about, **sides, "checks": checks, "status": _MEASURED, "reason": None}
    return {**entry, **_derived(entry)}


def not_measured(about: Mapping, reason: str) -> dict:
    """A row that could not be measured, and why."""
    sides = {
        name: {"what": about[name], "steps_timed": None, "steps_in_run": None, "times": [], "seconds": None}
        for name in ("own", "peer")
    }
    entry = {**about, **sides, "checks": [], "status": _NOT_MEASURED, "reason": reason}
    return {**entry, **_derived(entry)}


def line(name: str, role: str, points: Sequence[tuple[float, Work, Sequence[float]]], reason: str | None) -> dict:
    """One line of a series: its points, or why there is none."""
    return {
        "name": name,
        "role": role,
        "status": _MEASURED if points else _NOT_MEASURED,
        "reason": None if points else reason,
        "points": [_timed({"at": at}, work, times) for at, work, times in points],
    }


def _timed(about: dict, work: Work, times: Sequence[float]) -> dict:
    side = {**about, "steps_timed": work.steps_timed, "steps_in_run": work.steps_in_run, "times": list(times)}
    return {**side, "seconds": summary(_whole(side))}


def _whole(side: Mapping) -> list[float]:
    """Seconds of the whole work in each round."""
    scale = 1.0 if side["steps_timed"] is None else side["steps_in_run"] / side["steps_timed"]
    return [seconds * scale for seconds in side["times"]]


def _derived(entry: Mapping) -> dict:
    """What follows from the times of a row."""
    if entry["status"] == _NOT_MEASURED:
        return {"ratio": None, "rounds": 0, "reached": None}
    own, peer = _whole(entry["own"]), _whole(entry["peer"])
    # a speed: how often ours fits into theirs; a growth: how much the larger work costs
    ratio = summary(ratios(own, peer) if entry["growth"] else ratios(peer, own))
    reached = None
    if entry["target"] is not None:
        rule, value = entry["target"]["rule"], entry["target"]["value"]
        met = ratio["median"] >= value if rule == "at least" else ratio["median"] <= value
        reached = met and all(check["kept"] for check in entry["checks"])
    return {"ratio": ratio, "rounds": len(own), "reached": reached}


# Reading and writing


def write(data: Mapping, path: Path = PATH) -> None:
    """Write a record in one step, after checking it; a failure leaves the old file."""
    check(data)
    write_text(path, text(data))


def text(data: Mapping) -> str:
    """JSON with a list of numbers on one line."""
    said = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[[\d\s.,e+-]*\]", lambda found: " ".join(found[0].split()), said) + "\n"


def read(path: Path = PATH) -> dict:
    """A checked record.

    Raises
    ------
    ValueError
        If there is none, a field is missing, or its numbers do not fit together.
    """
    try:
        data = json.loads(path.read_text(encoding="utf8"))
    except OSError as error:
        raise ValueError(f"no {path.name}: run make bench") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} is no JSON: {error}") from error
    check(data)
    return data


def check(data: Mapping) -> None:
    """Refuse a record with a missing field or numbers that do not fit together.

    Raises
    ------
    ValueError
        Saying where.
    """
    _fields("the record", data, {"made", "rows", "series"})
    _fields("made", data["made"], _MADE)
    for entry in data["rows"]:
        _check_row(entry)
    for series in data["series"]:
        _fields("a series", series, _SERIES)
        for one in series["lines"]:
            _check_line(series["id"], one)
    for kind in ("rows", "series"):
        ids = [entry["id"] for entry in data[kind]]
        if len(set(ids)) != len(ids):
            raise ValueError(f"{kind} must have ids of their own, got {ids}")


def _check_row(entry: Mapping) -> None:
    name = f"row {entry.get('id', '?')}"
    _fields(name, entry, _ROW)
    _status(name, entry)
    for side in ("own", "peer"):
        _fields(f"{name}, {side}", entry[side], _SIDE)
        if entry["status"] == _MEASURED:
            _check_times(f"{name}, {side}", entry[side])
        elif entry[side]["times"] or entry[side]["seconds"]:
            raise ValueError(f"{name} is not measured, so it must have no times")
    for one in entry["checks"]:
        _fields(f"{name}, a check", one, _CHECK)
        _same(f"{name}, {one['what']}", one, judged(one["what"], one["value"], one["bound"]))
    if len(entry["own"]["times"]) != len(entry["peer"]["times"]):
        raise ValueError(f"{name} must have as many times of ours as of the peer's")
    target = entry["target"]
    if target is not None and (set(target) != {"rule", "value"} or target["rule"] not in ("at least", "at most")):
        raise ValueError(f"{name} must have a target 'at least' or 'at most', got {target}")
    for field, value in _derived(entry).items():
        _same(f"{name}, {field}", entry[field], value)


def _check_line(series: str, one: Mapping) -> None:
    name = f"series {series}, {one.get('name', '?')}"
    _fields(name, one, _LINE)
    _status(name, one)
    if bool(one["points"]) != (one["status"] == _MEASURED):
        raise ValueError(f"{name} must have points if and only if it is measured")
    for point in one["points"]:
        _fields(f"{name}, a point", point, _POINT)
        _check_times(f"{name}, at {point['at']}", point)


def _check_times(name: str, side: Mapping) -> None:
    times = side["times"]
    if not times or not all(isinstance(t, (int, float)) and math.isfinite(t) and t > 0 for t in times):
        raise ValueError(f"{name} must have times, all positive, got {times}")
    if (side["steps_timed"] is None) != (side["steps_in_run"] is None):
        raise ValueError(f"{name} must have both numbers of steps or none")
    _same(f"{name}, seconds", side["seconds"], summary(_whole(side)))


def _status(name: str, entry: Mapping) -> None:
    if entry["status"] not in (_MEASURED, _NOT_MEASURED):
        raise ValueError(f"{name} must be measured or not measured, got {entry['status']!r}")
    if (entry["reason"] is None) != (entry["status"] == _MEASURED):
        raise ValueError(f"{name} must give a reason if and only if it is not measured")


def _fields(name: str, entry: Mapping, wanted) -> None:
    missing = sorted(set(wanted) - set(entry)) if isinstance(entry, Mapping) else sorted(wanted)
    if missing:
        raise ValueError(f"{name} must have the fields {', '.join(missing)}")


def _same(name: str, given, computed) -> None:
    """Raise unless both agree, numbers up to rounding."""
    if isinstance(computed, Mapping):
        _fields(name, given, computed)
        for key, value in computed.items():
            _same(f"{name}, {key}", given[key], value)
        return
    if isinstance(computed, float) and isinstance(given, (int, float)) and not isinstance(given, bool):
        if math.isclose(given, computed, rel_tol=1e-9):
            return
    elif given is computed or (type(given) is type(computed) and given == computed):
        return
    raise ValueError(f"{name} must be {computed}, as its times say, got {given}")
