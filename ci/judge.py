"""Judge a chapter: before it runs (its source) and after (its outputs).

A notebook that ran without an error has not passed yet.  It may have left early,
hidden a failed claim, or shown nothing a reader can see.  Everything found is
reported as :class:`ChapterFailed`, which names chapter, cell and reason.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import nbformat

from csa_utils.claims import CLAIM_MIME, VERDICT_MIME, rejudge

__all__ = ["ChapterFailed", "check_source", "judge", "place"]

_GLUE = "application/papermill.record/"  # myst-nb's glue: shown elsewhere on the page
_SHOWABLE = ("text/html", "text/markdown", "text/latex", "text/plain")
_FORBIDDEN_TAGS = {"injected-parameters", "raises-exception", "skip-execution", "remove-output", "remove-cell"}
_FORBIDDEN_CODE = ("%%capture", "clear_output", "show=False", "._claims", "_showtraceback", "csa_utils.claims as")
_AFTERWARDS = {"explore", "solution"}  # cells with these tags, and no others, follow the verdict
_INJECTED = "injected-parameters"  # the cell papermill adds when parameters are given


class ChapterFailed(Exception):
    """A chapter did not pass.

    Parameters
    ----------
    chapter : str
        Its name.
    reason : str
        What is wrong, in one line or with a traceback below it.
    where : str
        The cell, as :func:`place` puts it; empty if it is about the whole file.
    """

    def __init__(self, chapter: str, reason: str, where: str = "") -> None:
        super().__init__(chapter, reason, where)  # all arguments: it crosses process borders
        self.chapter, self.reason, self.where = chapter, reason, where

    def __str__(self) -> str:
        return f"{self.chapter}{', ' if self.where else ''}{self.where}: {self.reason}"


def check_source(chapter: str, source: Path, parameters: Mapping) -> None:
    """Check a committed notebook before it runs.

    Parameters
    ----------
    chapter : str
        Name for the messages.
    source : Path
        The notebook file.
    parameters : Mapping
        The values that will be passed to its ``parameters`` cell.

    Raises
    ------
    ChapterFailed
        If it is no valid notebook, holds outputs, lacks a ``parameters`` cell
        with a ``seed``, or has no parameter of a given name.
    """
    try:
        notebook = nbformat.read(source, as_version=4)
        nbformat.validate(notebook)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise ChapterFailed(chapter, f"not a readable notebook: {error}") from error
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None):
            reason = "holds stored outputs; chapters are committed without (make strip)"
            raise ChapterFailed(chapter, reason, place(notebook, index))
        _refuse_tricks(chapter, notebook, index)
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        raise ChapterFailed(chapter, "its metadata must name the kernel python3")
    known = _parameters(notebook)
    if known is None:
        raise ChapterFailed(chapter, "has no cell tagged parameters")
    if "seed" not in known:
        raise ChapterFailed(chapter, "its parameters cell sets no seed")
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        reason = f"unknown parameter {', '.join(unknown)}; its parameters are {', '.join(sorted(known))}"
        raise ChapterFailed(chapter, reason)


def _refuse_tricks(chapter: str, notebook: nbformat.NotebookNode, index: int) -> None:
    """What could hide an error or a failed claim has no place in a chapter."""
    cell = notebook.cells[index]
    tags = sorted(_FORBIDDEN_TAGS & set(cell.metadata.get("tags", [])))
    if tags:
        raise ChapterFailed(chapter, f"must not carry the tag {', '.join(tags)}", place(notebook, index))
    for text in _FORBIDDEN_CODE if cell.cell_type == "code" else ():
        if text in cell.source:
            raise ChapterFailed(chapter, f"must not use {text}: every claim is shown", place(notebook, index))


def _parameters(notebook: nbformat.NotebookNode) -> set[str] | None:
    """Names that the first cell tagged ``parameters`` sets; None without such a cell.

    Read with Python's own parser: papermill's inspection misses a parameter whose
    comment holds an equals sign.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", []):
            try:
                statements = ast.parse(cell.source).body
            except SyntaxError:
                return set()
            targets = [t for s in statements if isinstance(s, ast.Assign) for t in s.targets]
            targets += [s.target for s in statements if isinstance(s, ast.AnnAssign)]
            return {target.id for target in targets if isinstance(target, ast.Name)}
    return None


def judge(chapter: str, notebook: nbformat.NotebookNode) -> list[dict]:
    """Judge a notebook that ran to its end.

    Parameters
    ----------
    chapter : str
        The name its claims have to carry.
    notebook : NotebookNode
        With its outputs.

    Returns
    -------
    list of dict
        The JSON form of each claim in the order of the page, with ``cell`` (its
        cell, counted from 1 as in the committed notebook) and ``anchor`` added.

    Raises
    ------
    ChapterFailed
        At the first thing that is wrong.
    """
    claims: list[dict] = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and cell.source.strip():
            try:
                _check_cell(cell)
                claims += [_claim(chapter, output, claims) for output in _bundles(cell, CLAIM_MIME)]
            except _Wrong as wrong:
                raise ChapterFailed(chapter, str(wrong), place(notebook, index)) from None
            for claim in claims:
                claim.setdefault("cell", _number(notebook, index))
    _check_verdict(chapter, notebook, claims)
    return claims


def place(notebook: nbformat.NotebookNode, index: int) -> str:
    """Name a cell for people, as they find it in the committed notebook.

    Parameters
    ----------
    notebook : NotebookNode
        Committed or executed.
    index : int
        Position in `notebook`, from 0.

    Returns
    -------
    str
        For example ``"cell 5 of 20 (id rate)"``, counted from 1.
    """
    cell = notebook.cells[index]
    if _is_injected(cell):
        return "the injected parameters"
    total = sum(not _is_injected(cell) for cell in notebook.cells)
    name = f" (id {cell.id})" if "id" in cell else ""
    return f"cell {_number(notebook, index)} of {total}{name}"


class _Wrong(Exception):
    """What is wrong with one cell."""


def _is_injected(cell) -> bool:
    return _INJECTED in cell.metadata.get("tags", [])


def _number(notebook, index: int) -> int:
    return index + 1 - sum(_is_injected(cell) for cell in notebook.cells[:index])


def _bundles(cell, mime: str) -> list:
    return [output.data[mime] for output in cell.outputs if mime in output.get("data", {})]


def _check_cell(cell) -> None:
    for output in cell.outputs:
        if output.output_type == "error":
            if output.ename == "SystemExit":
                # papermill and nbclient both take exit code 0 for success
                raise _Wrong(f"sys.exit({output.evalue}) ended the chapter before its end")
            raise _Wrong(f"shows an error output {output.ename}: {output.evalue}")
    if cell.execution_count is None:
        raise _Wrong("did not run")
    for output in cell.outputs:
        if output.output_type in ("display_data", "execute_result") and not _can_be_shown(output.data):
            kinds = ", ".join(sorted(output.data)) or "nothing at all"
            raise _Wrong(f"has an output with no displayable form: {kinds}")


def _can_be_shown(data: Mapping) -> bool:
    shown = any(mime in _SHOWABLE or mime.startswith("image/") for mime in data)
    return shown or (bool(data) and all(mime.startswith(_GLUE) for mime in data))


def _claim(chapter: str, record, earlier: list[dict]) -> dict:
    try:
        passed = rejudge(record)
        name, said = record["id"], record["passed"]
    except (ValueError, KeyError) as error:
        raise _Wrong(f"holds a malformed claim: {error}") from error
    if not passed and said is not True:
        raise _Wrong(
            f"claim {name} failed: {record.get('statement')}; measured {record['measured']}, "
            f"expected {record.get('expected')}"
        )
    if not passed:
        raise _Wrong(f"claim {name} says it passed and does not: measured {record['measured']}, rule {record['rule']}")
    if record.get("chapter") != chapter:
        raise _Wrong(f"claim {name} says it belongs to chapter {record.get('chapter')}")
    if any(name == claim["id"] for claim in earlier):
        raise _Wrong(f"claim {name} is recorded twice")
    return {**record, "anchor": f"claim-{name}"}


def _check_verdict(chapter: str, notebook, claims: list[dict]) -> None:
    code = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code" and cell.source.strip()]
    if not claims:
        raise ChapterFailed(chapter, "records no claim")
    judged = [i for i in code if not _is_afterwards(notebook.cells[i])]
    last = judged[-1] if judged else code[-1]
    where = place(notebook, last)
    verdicts = _bundles(notebook.cells[last], VERDICT_MIME)
    if len(verdicts) != 1 or last not in judged:
        reason = "the last code cell before those tagged explore or solution must end in ledger.verdict()"
        raise ChapterFailed(chapter, f"{reason}: missing verdict", where)
    if verdicts[0].get("chapter") != chapter:
        raise ChapterFailed(chapter, f"the verdict is about chapter {verdicts[0].get('chapter')}", where)
    for i in code:
        if _is_afterwards(notebook.cells[i]):
            _check_afterwards(chapter, notebook, i, last)
    shown, listed = [claim["id"] for claim in claims], verdicts[0].get("claims")
    if shown != listed:
        reason = f"the verdict lists the claims {listed}, the notebook shows {shown}"
        raise ChapterFailed(chapter, reason, where)


def _is_afterwards(cell) -> bool:
    return bool(_AFTERWARDS & set(cell.metadata.get("tags", [])))


def _check_afterwards(chapter: str, notebook, index: int, verdict: int) -> None:
    """What a reader explores or solves has no part in the judgement."""
    cell = notebook.cells[index]
    if index < verdict:
        raise ChapterFailed(
            chapter, "is tagged explore or solution but stands before the verdict", place(notebook, index)
        )
    if _bundles(cell, CLAIM_MIME) or _bundles(cell, VERDICT_MIME):
        raise ChapterFailed(chapter, "records a claim or a verdict after the verdict", place(notebook, index))
