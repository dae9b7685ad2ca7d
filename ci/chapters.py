"""Which chapters the book has, and where their files live."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

__all__ = ["ROOT", "Tree", "write_bytes", "write_text"]

#: The root of this source tree.
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Tree:
    """The paths of one book.

    A chapter is named by its path below ``book/`` without its ending, such as
    ``"model/first_token"``.

    Parameters
    ----------
    root : Path
        The folder that holds ``_toc.yml``, ``book/`` and ``csa_utils/``.
    """

    root: Path = ROOT

    @property
    def build(self) -> Path:
        return self.root / "_build"

    @property
    def claims(self) -> Path:
        return self.build / "claims.json"

    @property
    def html(self) -> Path:
        return self.build / "html"

    def source(self, chapter: str) -> Path:
        """The committed notebook, without outputs."""
        return self.root / "book" / f"{chapter}.ipynb"

    def executed(self, chapter: str) -> Path:
        """The run that was judged and passed.  Exists for passed chapters only."""
        return self.build / "executed" / f"{chapter}.ipynb"

    def running(self, chapter: str) -> Path:
        """What papermill writes while the chapter runs."""
        return self.build / "running" / f"{chapter}.ipynb"

    def failed(self, chapter: str) -> Path:
        """A run that did not pass, kept to be looked at."""
        return self.build / "failed" / f"{chapter}.ipynb"

    def withdraw(self) -> None:
        """Remove what would look like a finished book: the claims and the site."""
        self.claims.unlink(missing_ok=True)
        shutil.rmtree(self.html, ignore_errors=True)

    def pages(self) -> list[str]:
        """All entries of ``_toc.yml`` in reading order, such as ``"book/index"``."""
        return _entries(yaml.safe_load((self.root / "_toc.yml").read_text(encoding="utf8")))

    def chapters(self) -> list[str]:
        """The entries of ``_toc.yml`` that are notebooks, as chapter names."""
        names = [page.removeprefix("book/") for page in self.pages()]
        return [name for name in names if self.source(name).exists()]


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: a reader sees the old text or the new, never half of it."""
    write_bytes(path, text.encode("utf8"))


def write_bytes(path: Path, data: bytes) -> None:
    """As :func:`write_text`, for what is no text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _entries(node) -> list[str]:
    if isinstance(node, list):
        return [entry for item in node for entry in _entries(item)]
    if not isinstance(node, dict):
        return []
    own = [node[key] for key in ("root", "file") if key in node]
    return own + [entry for value in node.values() for entry in _entries(value)]
