"""Show chapters while they run: time and claims passed so far."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

from csa_utils.claims import CLAIM_MIME

__all__ = ["claims_passed", "watch"]

_REFRESH = 0.5  # seconds between two looks at the files
_QUIET = 15.0  # seconds between two plain lines about the same chapter


def claims_passed(notebook: Path) -> int | None:
    """Count the claims that a running chapter has passed so far.

    Parameters
    ----------
    notebook : Path
        papermill's output, which it rewrites after each cell.

    Returns
    -------
    int or None
        None if the file cannot be read at this moment.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    except (OSError, ValueError, KeyError):
        return None
    bundles = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return sum(bundle[CLAIM_MIME].get("passed") is True for bundle in bundles if CLAIM_MIME in bundle)


def watch(run) -> None:
    """Report on a run until all its chapters are done.

    On a terminal, one area of the screen is kept up to date; elsewhere, plain
    lines tell when a chapter starts, goes on and ends.

    Parameters
    ----------
    run : ci.run_notebooks.Run
    """
    if not run.futures:
        return
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    chapters = [_Chapter(name, run) for name in run.futures]
    drawn = 0
    while True:
        for chapter in chapters:
            chapter.look()
        news = [line for chapter in chapters for line in chapter.news(plain=not live)]
        if live:
            print(f"\x1b[{drawn}F\x1b[J" if drawn else "", end="")
        for line in news:
            print(line)
        if live:
            width = shutil.get_terminal_size().columns - 1
            area = [chapter.line()[:width] for chapter in chapters if chapter.state == "runs"]
            print("".join(f"{line}\n" for line in area), end="")
            drawn = len(area)
        sys.stdout.flush()
        if all(chapter.state in ("passed", "FAILED") for chapter in chapters):
            return
        time.sleep(_REFRESH)


class _Chapter:
    """What is known about one chapter from outside its process."""

    def __init__(self, name: str, run) -> None:
        self.name, self.future = name, run.futures[name]
        self.files = [run.tree.running(name), run.tree.executed(name), run.tree.failed(name)]
        self.state, self.claims, self.seen = "waits", 0, None
        self.began = self.ended = self.told = None

    def look(self) -> None:
        now = time.monotonic()
        if self.state in ("passed", "FAILED"):
            return
        done = self.future.done()
        if self.state == "waits" and (done or self.files[0].exists()):
            self.state, self.began = "runs", now
        self._count()
        if done:
            self.state = "passed" if self.future.exception() is None else "FAILED"
            self.ended = now

    def _count(self) -> None:
        for path in self.files:
            try:
                seen = (path, path.stat().st_mtime_ns)
            except OSError:
                continue
            if seen != self.seen and (claims := claims_passed(path)) is not None:
                self.claims, self.seen = claims, seen
            return

    def line(self) -> str:
        elapsed = (self.ended or time.monotonic()) - (self.began or time.monotonic())
        word = {1: "claim"}.get(self.claims, "claims")
        return f"  {self.state:<6}  {self.name:<32} {elapsed:5.0f} s  {self.claims:3d} {word} passed"

    def news(self, plain: bool) -> list[str]:
        """Lines that are worth keeping on the screen, each told once."""
        now = time.monotonic()
        ended = self.state in ("passed", "FAILED") and self.told != "end"
        still = plain and self.state == "runs" and (self.told is None or now - self.told > _QUIET)
        if not (ended or still):
            return []
        if self.told == "end":
            return []
        self.told = "end" if ended else now
        return [self.line()]
