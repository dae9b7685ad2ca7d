"""Run the chapters of the book with papermill, and judge each run.

    python -m ci.run_notebooks [--jobs 2] [--seed N] [--fresh] [chapter ...]

A chapter that passes leaves ``_build/executed/<chapter>.ipynb``, from which the
site is built: what a reader sees is the run that was judged.  One that fails
leaves nothing there; its half-run notebook goes to ``_build/failed``.  When all
chapters of the book have passed, their claims are gathered in ``_build/claims.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Iterable, Mapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from pathlib import Path

import nbformat
from traitlets.config import Config

from ci.chapters import Tree, write_text
from ci.judge import ChapterFailed, check_source, judge, place

__all__ = ["Run", "fingerprint", "main", "run_chapter", "workers"]

CELL_TIMEOUT = 300  # seconds for one cell
_OWN_FILES = ("pyproject.toml", "ci/run_notebooks.py", "ci/judge.py", "ci/patient.py", "ci/chapters.py")


def fingerprint(tree: Tree, chapter: str, parameters: Mapping) -> str:
    """Digest of everything a chapter's run depends on.

    Parameters
    ----------
    tree : Tree
        The book.
    chapter : str
        Name of the chapter.
    parameters : Mapping
        The values passed to it, plain JSON types.

    Returns
    -------
    str
        SHA-256 of the notebook, all of csa_utils, requirements.txt, the
        parameters, the Python version, and the code that runs and judges.
    """
    package = tree.root / "csa_utils"
    files = [tree.source(chapter), tree.root / "requirements.txt"]
    files += sorted(p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    files += sorted((tree.root / "book").rglob("*.py"))  # what a chapter could import
    files += [tree.root / name for name in _OWN_FILES]
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes() if path.exists() else b""
        digest.update(f"{path.relative_to(tree.root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    digest.update(json.dumps(dict(parameters), sort_keys=True).encode())
    digest.update(platform.python_version().encode())
    return digest.hexdigest()


def run_chapter(tree: Tree, chapter: str, parameters: Mapping, timeout: float = CELL_TIMEOUT) -> None:
    """Run one chapter and judge it; leave its executed copy if it passed.

    Parameters
    ----------
    tree : Tree
        The book.
    chapter : str
        Name of the chapter.
    parameters : Mapping
        Values for its ``parameters`` cell.
    timeout : float
        Seconds that a single cell may take.

    Raises
    ------
    ChapterFailed
        If it does not pass.  No executed copy is left then.
    """
    part, done, failed = tree.running(chapter), tree.executed(chapter), tree.failed(chapter)
    for path in (part, done, failed):
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
    mark = fingerprint(tree, chapter, parameters)  # before the run: a change meanwhile counts
    check_source(chapter, tree.source(chapter), parameters)
    try:
        notebook = _execute(tree, chapter, parameters, timeout)
        claims = judge(chapter, notebook)
    except BaseException:
        if part.exists():
            os.replace(part, failed)
        done.unlink(missing_ok=True)  # a chapter could have written it itself
        raise
    notebook.metadata["csa"] = {"fingerprint": mark, "claims": claims}
    write_text(part, nbformat.writes(notebook))
    os.replace(part, done)


def _execute(tree: Tree, chapter: str, parameters: Mapping, timeout: float) -> nbformat.NotebookNode:
    """Run the notebook; turn whatever stops it into ChapterFailed."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    part = tree.running(chapter)
    try:
        return papermill.execute_notebook(
            str(tree.source(chapter)),
            str(part),
            parameters=dict(parameters),
            kernel_name="python3",
            cwd=str(tree.source(chapter).parent),  # as in JupyterLab
            progress_bar=False,
            execution_timeout=timeout,
            start_timeout=120,
            config=_client(),
        )
    except papermill.PapermillExecutionError as error:
        # not the cell started last: one tagged raises-exception lets the next ones run
        where = place(_without_markers(part), error.cell_index)
        trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
        reason = f"raised {error.ename}: {error.evalue}\n{trace}".rstrip()
        raise ChapterFailed(chapter, reason, where) from None
    except CellTimeoutError:
        reason = f"hangs: not done after {timeout:g} seconds"
        raise ChapterFailed(chapter, reason, _last_started(part)) from None
    except DeadKernelError as error:
        raise ChapterFailed(chapter, f"the kernel died: {error}", _last_started(part)) from None
    except Exception as error:
        reason = f"could not be run: {type(error).__name__}: {error}\n{traceback.format_exc()}"
        raise ChapterFailed(chapter, reason, _last_started(part)) from None


def _client() -> Config:
    """Talk to the kernel patiently, over sockets in a private folder: no ports to race for."""
    config = Config({"AsyncKernelManager": {"client_class": "ci.patient.PatientClient"}})
    config.NotebookClient.shutdown_kernel = "immediate"  # a kernel that hangs does not leave when asked
    address = os.path.join(tempfile.mkdtemp(dir=os.environ.get("IPYTHONDIR"), prefix="k"), "s")
    if os.name == "posix" and len(address) < 90:  # a socket's path has room for about 100 bytes
        config.KernelManager = Config({"transport": "ipc", "ip": address})
    return config


def _last_started(part: Path) -> str:
    """The cell that was running last, read from papermill's unfinished output.

    A dead kernel and a hang leave no marker; but only started cells have a start time.
    """
    notebook = _read(part)
    if notebook is None:
        return ""
    started = [i for i, c in enumerate(notebook.cells) if c.metadata.get("papermill", {}).get("start_time")]
    return place(notebook, started[-1]) if started else ""


def _without_markers(part: Path) -> nbformat.NotebookNode:
    """Leave out the two cells that papermill adds when a cell raised an error."""
    notebook = nbformat.read(part, as_version=4)
    notebook.cells = [c for c in notebook.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", [])]
    return notebook


def _read(path: Path) -> nbformat.NotebookNode | None:
    try:
        return nbformat.reads(path.read_text(encoding="utf8"), as_version=4)
    except (OSError, ValueError, nbformat.ValidationError):
        return None


def workers(jobs: int = 2) -> ProcessPoolExecutor:
    """Processes that run chapters, with an environment that is the same everywhere.

    Parameters
    ----------
    jobs : int
        How many, at least 1.

    Returns
    -------
    ProcessPoolExecutor
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ValueError(f"jobs must be a positive integer, got {jobs!r}")
    # fresh interpreters: a forked one would inherit pytest's threads and locks
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_settle)


def _settle() -> None:
    """Shield the kernels of this worker from the settings of whoever runs it."""
    import atexit
    import shutil
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which ends this one

    private = tempfile.mkdtemp(prefix="csa-")
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    # a kernel that is told to stop grumbles on the terminal, across the progress
    quiet = Path(private, "profile_default", "ipython_kernel_config.py")
    write_text(quiet, "get_config().IPKernelApp.log_level = 50\n")
    os.environ.update(
        IPYTHONDIR=private,  # no start-up files of the user
        JUPYTER_RUNTIME_DIR=private,
        JUPYTER_PREFER_ENV_PATH="1",  # the kernel of this environment, not of the user
        OMP_NUM_THREADS="1",  # two chapters run side by side
        OPENBLAS_NUM_THREADS="1",
        PYDEVD_DISABLE_FILE_VALIDATION="1",
        PYTHONNOUSERSITE="1",
    )
    for name in ("MPLBACKEND", "MATPLOTLIBRC", "PYTHONSTARTUP"):
        os.environ.pop(name, None)


class Run:
    """Chapters being run in the background.

    Parameters
    ----------
    tree : Tree
        The book.
    pool : ProcessPoolExecutor
        From `workers`.
    chapters : iterable of str, optional
        Names; by default all notebooks of the table of contents.
    parameters : Mapping, optional
        Values for the ``parameters`` cell of each chapter.
    fresh : bool
        Run a chapter even if its inputs have not changed.
    timeout : float
        Seconds that a single cell may take.

    Attributes
    ----------
    reused : list of str
        Chapters whose executed copy is up to date, which are not run.
    futures : dict of str to Future
        One for each chapter that is run, in order.

    Raises
    ------
    ValueError
        If a name is not a chapter of the table of contents, or the timeout is not positive.
    """

    def __init__(
        self,
        tree: Tree,
        pool: ProcessPoolExecutor,
        chapters: Iterable[str] | None = None,
        *,
        parameters: Mapping | None = None,
        fresh: bool = False,
        timeout: float = CELL_TIMEOUT,
    ) -> None:
        known = tree.chapters()
        names = known if chapters is None else list(chapters)
        for name in names:
            if name not in known:
                raise ValueError(f"chapter must be one of {', '.join(known) or '(none)'}, got {name!r}")
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, got {timeout!r}")
        self.tree, self.parameters = tree, dict(parameters or {})
        self.reused = [name for name in names if not fresh and self.is_current(name)]
        rest = [name for name in names if name not in self.reused]
        if rest:
            tree.withdraw()
        for name in rest:  # all at once: what waits for its turn must not look done
            tree.executed(name).unlink(missing_ok=True)
            tree.running(name).unlink(missing_ok=True)
        self.futures: dict[str, Future] = {
            name: pool.submit(run_chapter, tree, name, self.parameters, timeout) for name in rest
        }

    def is_current(self, chapter: str) -> bool:
        """Whether the executed copy belongs to the present inputs."""
        notebook = _read(self.tree.executed(chapter))
        mark = notebook.metadata.get("csa", {}).get("fingerprint") if notebook else None
        return mark is not None and mark == fingerprint(self.tree, chapter, self.parameters)

    def wait(self, chapter: str) -> None:
        """Wait for one chapter.

        Raises
        ------
        ChapterFailed
            If it did not pass.
        """
        if chapter in self.futures:
            try:
                self.futures[chapter].result()
            except ChapterFailed:
                raise
            except BrokenExecutor as error:
                raise ChapterFailed(chapter, f"a worker process died: {error}") from error
            except Exception as error:
                raise ChapterFailed(chapter, f"could not be judged: {type(error).__name__}: {error}") from error

    def stop(self) -> None:
        """End all runs at once; nothing of them is left that looks done."""
        for future in self.futures.values():
            future.cancel()
        for process in multiprocessing.active_children():
            process.terminate()  # its kernel notices and ends too
        self.tree.withdraw()

    def failures(self) -> dict[str, ChapterFailed]:
        """Wait for all chapters; return those that failed."""
        failed = {}
        for name in self.futures:
            try:
                self.wait(name)
            except ChapterFailed as error:
                failed[name] = error
        return failed

    def gather(self) -> list[dict] | None:
        """Write ``_build/claims.json`` if every chapter of the book has passed.

        Returns
        -------
        list of dict or None
            All claims; None, and no file, if a chapter has failed or is not current.
        """
        chapters = self.tree.chapters()
        if self.failures() or not all(self.is_current(name) for name in chapters):
            self.tree.withdraw()
            return None
        claims = [c for name in chapters for c in _read(self.tree.executed(name)).metadata["csa"]["claims"]]
        text = json.dumps(claims, indent=1, ensure_ascii=False) + "\n"
        if not self.tree.claims.exists() or self.tree.claims.read_text(encoding="utf8") != text:
            write_text(self.tree.claims, text)  # else its pages would be built again
        return claims


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 1 if a chapter failed."""
    from ci.progress import watch
    from ci.warm import warm

    parser = argparse.ArgumentParser(prog="python -m ci.run_notebooks", description="Run and judge the chapters.")
    parser.add_argument("chapters", nargs="*", metavar="chapter", help="such as model/first_token; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="chapters at a time (default 2)")
    parser.add_argument("--seed", type=int, help="another seed than the published one, for every chapter")
    parser.add_argument("--fresh", action="store_true", help="run again what has not changed too")
    parser.add_argument("--timeout", type=float, default=CELL_TIMEOUT, help="seconds for one cell (default 300)")
    given = parser.parse_args(arguments)
    parameters = {} if given.seed is None else {"seed": given.seed}
    tree = Tree()
    try:
        warm()
    except KeyboardInterrupt:
        return 130
    with workers(given.jobs) as pool:
        try:
            run = Run(
                tree, pool, given.chapters or None, parameters=parameters, fresh=given.fresh, timeout=given.timeout
            )
        except ValueError as error:
            parser.error(str(error))
        if run.reused:
            print(f"Unchanged, reused: {', '.join(run.reused)}", flush=True)
        try:
            watch(run)
            failures = run.failures()
        except KeyboardInterrupt:
            run.stop()
            print("\nStopped. Chapters that had passed are kept; the others are run next time.", file=sys.stderr)
            return 130
        claims = run.gather()
    for failure in failures.values():
        print(f"\nFAILED  {failure}", file=sys.stderr)
    if failures:
        kept = tree.failed("x").parent.relative_to(tree.root)
        print(f"\n{len(failures)} of {len(run.futures)} chapters failed; see {kept}", file=sys.stderr)
        return 1
    if claims is not None:
        print(f"All {len(tree.chapters())} chapters passed, with {len(claims)} claims.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
