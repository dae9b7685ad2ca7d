"""Build the site strictly from the runs that passed.

    python -m ci.build_book [--fresh]

Warnings are errors.  A build that fails leaves no front page behind, so that
nobody mistakes yesterday's site for today's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ci.chapters import Tree, write_text

__all__ = ["BuildFailed", "build", "main"]

# jupyter-book's own redirect has neither language nor title
_FRONT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Clustering in Causal Attention Masking: a reproduction</title>
<meta http-equiv="refresh" content="0; url=book/index.html">
</head>
<body><p><a href="book/index.html">Open the book</a></p></body>
</html>
"""


class BuildFailed(Exception):
    """The site could not be built; the message holds what the builder said last."""


def build(tree: Tree, *, fresh: bool = False, output=None) -> Path:
    """Build the site.

    Parameters
    ----------
    tree : Tree
        The book.
    fresh : bool
        Build every page again.
    output : file, optional
        Where the builder's messages go; by default they are kept for the error.

    Returns
    -------
    Path
        The front page, ``_build/html/index.html``.

    Raises
    ------
    BuildFailed
        If a chapter has no executed copy, or the builder gives a warning or an error.
    """
    front = tree.html / "index.html"
    front.unlink(missing_ok=True)
    (tree.html / "book" / "index.html").unlink(missing_ok=True)
    missing = [name for name in tree.chapters() if not tree.executed(name).exists()]
    if missing or not tree.claims.exists():
        tree.withdraw()
        raise BuildFailed(f"not every chapter has passed: {', '.join(missing) or 'no claims.json'}")
    if fresh:
        _forget(tree)
    # jupyter_book has no __main__; started so, the root is on the path and Sphinx finds ci
    start = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", start, "build", ".", "-W", "-n", "--keep-going"]
    ran = subprocess.run(
        command,
        cwd=tree.root,
        env={**os.environ, "PYTHONNOUSERSITE": "1", "PYTHONWARNINGS": "ignore", "NO_COLOR": "1"},
        stdout=subprocess.PIPE if output is None else output,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode or not (tree.html / "book" / "index.html").exists():
        # without this the next build would pass: read pages are not warned about twice
        _forget(tree)
        raise BuildFailed(f"jupyter-book failed ({ran.returncode}):\n{_tail(ran.stdout)}")
    write_text(front, _FRONT)
    return front


def _forget(tree: Tree) -> None:
    for folder in (tree.html, tree.build / ".doctrees", tree.build / "jupyter_execute"):
        shutil.rmtree(folder, ignore_errors=True)


def _tail(said: str | None) -> str:
    """Warnings and errors first, then the end of what the builder said."""
    lines = (said or "").splitlines()
    loud = [line for line in lines if "WARNING" in line or "ERROR" in line]
    return "\n".join([*loud, "...", *lines[-25:]])


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 1 if the build failed."""
    parser = argparse.ArgumentParser(prog="python -m ci.build_book", description="Build the site strictly.")
    parser.add_argument("--fresh", action="store_true", help="build every page again")
    given = parser.parse_args(arguments)
    print("Building the site ...", flush=True)
    try:
        front = build(Tree(), fresh=given.fresh)
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(f"The book is ready. Open:\n  {front}\n  {front.as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
