"""Measure rows and series, and say on what machine."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ci.bench import record
from ci.bench.measure import Rule, Work, interleave
from ci.bench.peers import Failed, Missing
from ci.bench.rows import Line, Row, Series
from ci.chapters import ROOT

__all__ = ["facts", "measure", "measure_row", "measure_series"]

_LIBRARIES = ("numpy", "scipy", "numba", "torch", "jax", "jaxlib", "diffrax")
#: What a measurement depends on; changes elsewhere do not count.
_SOURCES = ("csa_utils", "ci/bench")


def measure(
    rows: Sequence[Row], series: Sequence[Series], rule: Rule, threads: int, say: Callable[[str], None] = print
) -> dict:
    """Measure everything.

    Parameters
    ----------
    rows, series : sequence
        What is measured.
    rule : Rule
        When a measurement ends; a point of a series gets a part of the time of a row.
    threads : int
        How many each side may use; for the record only, it is set before numpy starts.
    say : callable
        Told about each row when it is done.

    Returns
    -------
    dict
        The record.
    """
    made = facts(threads, rule)
    done = []
    for row in rows:
        entry = measure_row(row, rule)
        done.append(entry)
        result = entry["reason"] or f"ratio {entry['ratio']['median']:.3g}, rounds {entry['rounds']}"
        say(f"{row.id}: {result}")
    shorter = replace(rule, rounds=rule.fewest, seconds=rule.seconds / 8, patience=rule.patience / 8)
    curves = []
    for one in series:
        curves.append(measure_series(one, shorter))
        say(f"{one.id}: " + ", ".join(f"{line['name']} {len(line['points'])} points" for line in curves[-1]["lines"]))
    return {"made": made, "rows": done, "series": curves}


def measure_row(row: Row, rule: Rule) -> dict:
    """Measure one row; one that cannot be measured says why."""
    try:
        trial = row.prepare()
        works = {"own": trial.own, "peer": trial.peer}
        times = interleave({name: work.call for name, work in works.items()}, rule)
        return record.row(row.about(), works, times, trial.checks())
    except (NotImplementedError, Missing, Failed) as error:
        return record.not_measured(row.about(), str(error))


def measure_series(series: Series, rule: Rule) -> dict:
    """Measure one series: at each value all lines in turn."""
    points: dict[str, list] = {line.name: [] for line in series.lines}
    reasons: dict[str, str] = {}
    for at in sorted({value for line in series.lines for value in line.values}):
        works = {}
        for line in series.lines:
            work = _ready(line, at, reasons)
            if work is not None:
                works[line.name] = work
        times = interleave({name: work.call for name, work in works.items()}, rule) if works else {}
        for name, work in works.items():
            points[name].append((at, work, times[name]))
    lines = [record.line(line.name, line.role, points[line.name], reasons.get(line.name)) for line in series.lines]
    about = {name: getattr(series, name) for name in ("id", "title", "across", "settings")}
    return {**about, "lines": lines}


def _ready(line: Line, at: float, reasons: dict[str, str]) -> Work | None:
    """The work of a line at a value, once called; None if it has none or cannot do it."""
    if at not in line.values:
        return None
    try:
        work = line.prepare(at)
        work.call()
    except (NotImplementedError, Missing, Failed) as error:
        reasons[line.name] = str(error)
        return None
    return work


def facts(threads: int, rule: Rule) -> dict:
    """Where and with what a record is made."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "changed": bool(_git("status", "--porcelain", "--", *_SOURCES)),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _LIBRARIES},
        "rule": rule.as_dict(),
    }


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    """Model of the processor, as the system names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or f"unknown ({sys.platform})"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
