"""Many independent runs of a random experiment, the same numbers on any machine.

An experiment is a function ``experiment(rng, **parameters)``.  Run ``i`` of seed
``s`` gets the ``i``-th child of ``numpy.random.SeedSequence(s)``, so that its result
depends on ``(s, i)`` only: not on the number of workers, their order, the size of
the chunks, or a death on the way.  :func:`generator` makes that generator, to repeat
one run alone.

By default the runs go to one process per core.  Any other
``concurrent.futures.Executor`` takes their place unchanged, so a cluster as well::

    from dask.distributed import Client

    with Client("tcp://scheduler:8786") as client:
        found = ensemble.run(experiment, 10_000, seed=7, executor=client.get_executor(), workers=200)

(``workers`` only says how many to keep busy.)  The workers must be able to import the
module of the experiment.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import math
import multiprocessing
import os
import pickle
import pickletools
import signal
import sys
import threading
import time
import traceback
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import checks

__all__ = ["Ensemble", "Interrupted", "Lost", "generator", "run"]

_CHUNK_SECONDS = 0.5  # long against the cost of sending a chunk, short against patience
_SAVE_SECONDS = 10.0
_SAVE_SHARE = 20  # a file that takes a second is written every 20 seconds at most
_GRACE_SECONDS = 0.5  # for a run in progress to end, once somebody has pressed Ctrl-C
_GIVE_UP = 3  # chunks lost before the rest is not tried any more
_IN_FLIGHT = 64  # chunks sent to an executor that does not tell its size
_ONE_THREAD = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_FORMAT = "csa_utils.ensemble 1"


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble:
    """Results of the finished runs, in the order of their numbers.

    Attributes
    ----------
    seed : int or SeedSequence
        As it was given.
    runs : int
        How many runs were asked for, numbered from 0.
    index : ndarray of int, shape (N,)
        Numbers of the finished runs, increasing.
    values : dict of str to ndarray, shape (N, ...)
        What they returned, by name; "value" if the experiment returned no names.
    experiment : str
        Name and parameters of the experiment.
    """

    seed: int | np.random.SeedSequence
    runs: int
    index: np.ndarray
    values: dict[str, np.ndarray]
    experiment: str

    @property
    def done(self) -> np.ndarray:
        """Which runs are finished, bool, shape (runs,)."""
        done = np.zeros(self.runs, dtype=bool)
        done[self.index] = True
        return done

    @property
    def complete(self) -> bool:
        """Whether all runs are finished."""
        return len(self.index) == self.runs

    def __getitem__(self, name: str) -> np.ndarray:
        """The results called `name`, shape (N, ...).

        Raises
        ------
        ValueError
            If there is no such name, or no run is finished.
        """
        if not len(self.index):
            raise ValueError(f"no run is finished, so there is no {name!r}")
        if not isinstance(name, str) or name not in self.values:
            raise ValueError(f"name must be one of {', '.join(map(repr, self.values))}, got {name!r}")
        return self.values[name]

    def mean(self, name: str = "value") -> np.ndarray:
        """Mean over the finished runs, shape (...).

        Raises
        ------
        ValueError
            If there is no such name, or no run is finished.
        """
        return self[name].mean(axis=0)

    def standard_error(self, name: str = "value") -> np.ndarray:
        """Standard error of :meth:`mean`: sample deviation over the root of N, shape (...).

        Raises
        ------
        ValueError
            If there is no such name, or fewer than two runs are finished.
        """
        values = self[name]
        if len(values) < 2:
            raise ValueError("a standard error needs at least 2 finished runs, got 1")
        return values.std(axis=0, ddof=1) / math.sqrt(len(values))

    def quantile(self, name: str, q) -> np.ndarray:
        """Quantiles over the finished runs.

        Parameters
        ----------
        name : str
        q : float or array_like
            In [0, 1].

        Returns
        -------
        ndarray, shape of `q` followed by (...)

        Raises
        ------
        ValueError
            If there is no such name, no run is finished, the results are complex, or
            `q` leaves [0, 1].
        """
        values, q = self[name], checks.array("q", q)
        if np.any((q < 0) | (q > 1)):
            raise ValueError(f"q must lie in [0, 1], got {q}")
        if values.dtype.kind == "c":
            raise ValueError(f"quantiles need real numbers, got {values.dtype} for {name!r}")
        return np.quantile(values.astype(float) if values.dtype.kind == "b" else values, q, axis=0)

    def __repr__(self) -> str:
        count = f"{self.runs}" if self.complete else f"{len(self.index)} of {self.runs}"
        seed = self.seed if isinstance(self.seed, int) else f"{self.seed.entropy} {self.seed.spawn_key}"
        each = ", ".join(f"{name} {a.shape[1:]} {a.dtype}" for name, a in self.values.items())
        return f"Ensemble({count} runs of {self.experiment}, seed {seed}{'; each ' if each else ''}{each})"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during :func:`run`; what was finished is in `partial`.

    Attributes
    ----------
    partial : Ensemble
        The finished runs.  ``run(..., resume=partial)`` does the others.
    """

    def __init__(self, message: str, partial: Ensemble):
        super().__init__(message, partial)
        self.partial = partial

    def __str__(self) -> str:
        return self.args[0]


class Lost(RuntimeError):
    """Runs whose worker died again and again; all others are in `partial`.

    Attributes
    ----------
    runs : tuple of int
        The lost runs.
    partial : Ensemble
        The finished runs.
    """

    def __init__(self, message: str, runs: tuple[int, ...] = (), partial: Ensemble | None = None):
        super().__init__(message, runs, partial)
        self.runs, self.partial = runs, partial

    def __str__(self) -> str:
        return self.args[0]


def generator(seed, i: int) -> np.random.Generator:
    """The random generator of run `i`, to repeat this run alone.

    Parameters
    ----------
    seed : int or SeedSequence
        Seed of the ensemble.
    i : int
        Number of the run, from 0.

    Returns
    -------
    Generator
        Made of ``SeedSequence(seed).spawn(n)[i]``, any ``n > i``.

    Raises
    ------
    ValueError
        If `seed` is neither a whole number >= 0 nor a SeedSequence without children,
        or `i` is not a whole number >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> child = np.random.SeedSequence(7).spawn(4)[3]
    >>> generator(7, 3).random() == np.random.default_rng(child).random()
    True
    """
    return _generator(_root(_checked_seed(seed)), checks.whole("i", i, 0))


def run(
    experiment: Callable,
    runs: int,
    seed,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | None = None,
    save=None,
    resume: Ensemble | None = None,
    retries: int = 3,
    chunk: int | None = None,
) -> Ensemble:
    """Repeat a random experiment.

    Parameters
    ----------
    experiment : callable
        Called as ``experiment(rng)`` with a numpy Generator; fix its parameters with
        functools.partial.  It returns a number, an array, or a dict of these by name,
        with the same names and shapes in every run.
    runs : int
        How many runs, >= 1.
    seed : int or SeedSequence
        A whole number >= 0, or a SeedSequence that has not spawned: run i takes its
        child i.
    executor : concurrent.futures.Executor, optional
        Where the runs go; it is left open.  If left out, processes of this machine
        with one thread each, which end with the call.  An experiment that another
        process could not import (a lambda, a function typed in a notebook) runs in
        threads of this process: compiled loops that release the interpreter lock run
        side by side there, others take turns.
    workers : int, optional
        How many at once; if left out, one for each core this process may use.  With
        1, and no `executor`, the runs are done by this process itself.
    progress : bool, optional
        Show a bar on stderr; if left out, only if stderr is a terminal.
    save : path, optional
        An .npz file: finished runs are written there every ten seconds, at the end and
        when anything goes wrong; runs that are already there are not done again.
    resume : Ensemble, optional
        Finished runs of the same experiment and seed, which are not done again.
    retries : int
        How often a run is tried again after its worker has died, >= 0.
    chunk : int, optional
        Runs sent to a worker at once; if left out, about half a second's worth.

    Returns
    -------
    Ensemble
        All runs.

    Raises
    ------
    ValueError
        If an argument breaks its rule, `save` or `resume` hold runs of another
        experiment or seed, or runs return different names or shapes.
    Interrupted
        On Ctrl-C.
    Lost
        If the worker of a run died more than `retries` times.  The other runs are done
        first, unless three chunks are lost.
    Exception
        Whatever the experiment raises, as it is, with a note that tells the run.

    Notes
    -----
    Every exception raised after the start has the finished runs in ``.partial``.

    `save` and `resume` know an experiment by module, name and parameters.  They can't
    know that its code has changed meanwhile.

    A script that is run as such needs ``if __name__ == "__main__":`` around its call,
    since worker processes import it.

    Examples
    --------
    >>> def experiment(rng, n):
    ...     return rng.standard_normal(n).max()
    >>> found = run(partial(experiment, n=5), 100, seed=7, workers=1)
    >>> found["value"].shape
    (100,)
    """
    if not callable(experiment):
        raise ValueError(f"experiment must be a function experiment(rng), got {experiment!r}")
    runs, seed, retries = checks.whole("runs", runs), _checked_seed(seed), checks.whole("retries", retries, 0)
    if executor is not None and (isinstance(executor, type) or not callable(getattr(executor, "submit", None))):
        raise ValueError(f"executor must be a concurrent.futures.Executor, got {executor!r}")
    workers = None if workers is None else checks.whole("workers", workers)
    chunk = None if chunk is None else checks.whole("chunk", chunk)
    if progress is not None and not isinstance(progress, bool):
        raise ValueError(f"progress must be True, False or None, got {progress!r}")
    path = None if save is None else _checked_path(save, experiment)
    if resume is not None and not isinstance(resume, Ensemble):
        raise ValueError(f"resume must be an Ensemble, got {resume!r}")

    store = _Store(seed, _describe(experiment))
    if resume is not None:
        store.adopt(resume)
    if path is not None:
        store.read(path)
    queue = _Queue(np.setdiff1d(np.arange(runs), store.index()), workers or _cores(), chunk)
    lanes = _lanes(experiment, _root(seed), executor, min(workers or _cores(), max(len(queue), 1)), workers)
    job = _Job(experiment, store, queue, lanes, retries, path)
    job.unsaved = resume is not None
    shown = sys.stderr is not None and sys.stderr.isatty() if progress is None else progress
    try:
        with _bar(runs, runs - len(queue), shown) as job.advance:
            job.go()
    except BaseException as error:
        with _deaf():  # a second Ctrl-C must not cut the rescue short
            job.rescue(error)
        partial = store.ensemble(runs)
        if isinstance(error, KeyboardInterrupt):
            kept = "in .partial" if path is None else f"in .partial and in {path}"
            message = f"{len(partial.index)} of {runs} runs are finished and kept {kept}"
            raise Interrupted(message, partial) from None
        with contextlib.suppress(AttributeError, TypeError):  # an exception may refuse attributes
            error.partial = partial
        raise
    return store.ensemble(runs)


# ---------------------------------------------------------------- arguments


def _cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _checked_seed(seed) -> int | np.random.SeedSequence:
    if not isinstance(seed, np.random.SeedSequence):
        return checks.whole("seed", seed, 0)
    if seed.n_children_spawned:
        # Its first children are in use elsewhere: the runs would not be independent of them.
        raise ValueError(f"seed must be a SeedSequence that has not spawned, got one with {seed.n_children_spawned}")
    return seed


def _checked_path(save, experiment) -> Path:
    if not isinstance(save, (str, os.PathLike)) or not str(save):
        raise ValueError(f"save must be the path of a file, got {save!r}")
    path = Path(save).absolute()
    if path.is_dir():
        raise ValueError(f"save must be the path of a file, got the folder {path}")
    if not path.parent.is_dir():
        raise ValueError(f"save must be in a folder that exists, got {path}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"save must be in a folder that can be written to, got {path}")
    if "<" in _describe_callable(experiment):
        # A file is trusted by the name of the experiment, and all lambdas have the same.
        raise ValueError(f"save needs a function with a name of its own, got {_describe_callable(experiment)}")
    return path


def _describe_callable(function) -> str:
    if isinstance(function, partial):
        return _describe_callable(function.func)
    if not hasattr(function, "__qualname__"):
        function = type(function)
    return f"{function.__module__}.{function.__qualname__}"


def _describe(value) -> str:
    """Text that differs if the value does; repr would cut a large array short."""
    if isinstance(value, partial):
        given = [_describe(a) for a in value.args]
        given += [f"{name}={_describe(a)}" for name, a in sorted(value.keywords.items())]
        return f"{_describe_callable(value.func)}({', '.join(given)})"
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return f"array({value.shape}, {value.dtype.str}, {digest})"
    if type(value) is dict:
        return "{" + ", ".join(f"{_describe(k)}: {_describe(a)}" for k, a in value.items()) + "}"
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(_describe, value))})"
    if type(value) in (set, frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(_describe, value)))})"
    return _describe_callable(value) if hasattr(value, "__qualname__") else repr(value)


# ---------------------------------------------------------------- one run


class _Root(NamedTuple):
    """What a SeedSequence is made of; run i extends the spawn key by i."""

    entropy: int | tuple[int, ...]
    spawn_key: tuple[int, ...]
    pool_size: int


def _root(seed) -> _Root:
    if isinstance(seed, int):
        seed = np.random.SeedSequence(seed)
    entropy = seed.entropy
    entropy = int(entropy) if np.ndim(entropy) == 0 else tuple(int(e) for e in np.ravel(entropy))
    return _Root(entropy, tuple(int(k) for k in seed.spawn_key), int(seed.pool_size))


def _generator(root: _Root, i: int) -> np.random.Generator:
    # The child by its key: spawn(n)[i] without the other n - 1.
    child = np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, i), pool_size=root.pool_size)
    return np.random.Generator(np.random.PCG64(child))


def _named(i: int, value) -> dict[str, np.ndarray]:
    """What run `i` returned as arrays by name: copies, since a run may reuse its memory."""
    if isinstance(value, tuple):
        raise ValueError(f"run {i} must return a number, an array or a dict by name, got a tuple of {len(value)}")
    named = dict(value) if isinstance(value, Mapping) else {"value": value}
    if not named or not all(isinstance(name, str) and name for name in named):
        raise ValueError(f"run {i} must return results with names, got the names {list(named)}")
    for name, a in named.items():
        try:
            named[name] = np.array(a)
        except ValueError as error:
            raise ValueError(f"run {i} must return arrays of numbers, got a ragged {name!r}") from error
        if named[name].dtype.kind not in "biufc":
            raise ValueError(f"run {i} must return numbers, got {type(a).__name__} for {name!r}")
    return named


def _agree(i: int, layout: dict, j: int, other: dict) -> None:
    """Runs `i` and `j` must have the same names and shapes."""
    if layout.keys() != other.keys():
        raise ValueError(
            f"all runs must return the same names, got {list(layout)} in run {i}, {list(other)} in run {j}"
        )
    for name, shape in layout.items():
        if shape != other[name]:
            shapes = f"{shape} in run {i} and {other[name]} in run {j}"
            raise ValueError(f"all runs must return the same shapes, got {shapes} for {name!r}")


def _shapes(named: Mapping[str, np.ndarray]) -> dict[str, tuple]:
    return {name: a.shape for name, a in named.items()}


class _Failure(NamedTuple):
    """An exception of the experiment."""

    run: int
    error: Exception
    trace: str


class _Block(NamedTuple):
    """Results of a chunk: run numbers, and by name an array with one row for each."""

    runs: np.ndarray
    values: dict[str, np.ndarray]
    seconds: float = 0.0
    failure: _Failure | None = None


def _fill(bag: list, experiment, root: _Root, runs, stopped) -> _Failure | None:
    """Do these runs one after the other; results go to `bag` until a run fails."""
    for i in runs:
        if stopped():
            break
        try:
            named = _named(i, experiment(_generator(root, i)))
            if bag:
                _agree(bag[0][0], _shapes(bag[0][1]), i, _shapes(named))
        except Exception as error:
            return _Failure(i, error, traceback.format_exc())
        bag.append((i, named))
    return None


def _packed(bag: list, seconds: float = 0.0, failure: _Failure | None = None) -> _Block:
    names = bag[0][1] if bag else ()
    values = {name: np.stack([named[name] for _, named in bag]) for name in names}
    return _Block(np.array([i for i, _ in bag], dtype=np.int64), values, seconds, failure)


def _never() -> bool:
    return False


def _chunk(experiment, root: _Root, runs, stopped=_never) -> _Block:
    """Do a chunk of runs, and measure how long it takes."""
    bag, start = [], time.perf_counter()
    failure = _fill(bag, experiment, root, runs, stopped)
    return _packed(bag, time.perf_counter() - start, failure)


def _chunk_elsewhere(experiment, root: _Root, runs, attempt: int, stopped=_never) -> _Block:
    """A chunk whose result goes back to another process.

    `attempt` makes one try differ from the next: a cluster may answer the same call
    with the same failure, from memory.
    """
    block = _chunk(experiment, root, runs, stopped)
    return block if block.failure is None else block._replace(failure=_portable(block.failure))


def _portable(failure: _Failure) -> _Failure:
    """A failure that survives pickling: some exceptions break when they are rebuilt."""
    try:
        pickle.loads(pickle.dumps(failure.error))
        return failure
    except Exception:
        error = RuntimeError(f"{type(failure.error).__qualname__}: {failure.error}")
        return failure._replace(error=error)


# ---------------------------------------------------------------- worker processes

_worker = None  # in a worker process: what it was started with

# In the memory that a worker shares with its owner
_STOP, _STARTED = 0, 1


def _begin(payload: bytes, root: _Root, shared) -> None:
    """First call in a worker process."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's business
    # Without its owner a worker would wait for work for ever.
    threading.Thread(target=_leave_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    _worker = [payload, root, shared]
    shared[_STARTED] = 1


def _leave_with(owner) -> None:
    owner.join()
    os._exit(1)


def _work(runs, attempt: int) -> _Block:
    """A chunk, in a worker process."""
    payload, root, shared = _worker
    if isinstance(payload, bytes):
        # Here, not in _begin: if the module can't be imported, somebody gets the exception.
        payload = _worker[0] = pickle.loads(payload)
    return _chunk_elsewhere(payload, root, runs, attempt, lambda: bool(shared[_STOP]))


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Worker processes that start inside have one thread each and don't hear Ctrl-C."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    # Blocked signals are inherited: from the first moment on, not only after _begin.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _payload(experiment) -> bytes | None:
    """The experiment pickled, or None if another process could not rebuild it."""
    try:
        payload = pickle.dumps(experiment)
    except Exception:  # a pickle fails in many ways
        return None
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if file is not None and getattr(main, "__spec__", None) is None and not os.path.exists(file):
        return None  # a worker starts with the file of its owner, here "<stdin>" or the like
    typed = file is None or hasattr(sys, "ps1") or sys.flags.interactive
    if typed and any(argument == "__main__" for _, argument, _ in pickletools.genops(payload)):
        return None  # pickled by name, and no file has this name
    return payload


# ---------------------------------------------------------------- lanes


class _Chunk(NamedTuple):
    """Runs to do together, and how often their worker has died already."""

    runs: tuple[int, ...]
    deaths: int = 0


class _Lane:
    """An executor and the chunks it is busy with."""

    def __init__(self, depth: int):
        self.depth = depth
        self.flying: dict[Future, _Chunk] = {}

    def send(self, chunk: _Chunk) -> None:
        self.flying[self._submit(chunk)] = chunk

    def _submit(self, chunk: _Chunk) -> Future:
        raise NotImplementedError

    def started(self) -> bool:
        """Whether a worker has ever been ready for work, as far as one knows."""
        return True

    def renew(self) -> None:
        """Called when a worker has died."""

    def stop(self) -> None:
        """Ask for the end, without waiting."""

    def close(self, at_once: bool) -> None:
        """Free what the lane has opened."""


class _Process(_Lane):
    """One worker process.

    A pool of several breaks as a whole if one worker dies, and nobody can tell which
    chunk did it.  A pool of one loses the chunk it was busy with, and nothing else.
    """

    def __init__(self, payload: bytes, root: _Root):
        super().__init__(depth=1)
        self.payload, self.root = payload, root
        self.pool, self.shared, self.once = None, None, False

    def _submit(self, chunk):
        for last in (False, True):
            if self.pool is None:
                # spawn: the threads of a compiled loop do not survive a fork
                context = multiprocessing.get_context("spawn")
                self.shared = context.RawArray("b", 2)
                self.pool = ProcessPoolExecutor(
                    1, context, initializer=_begin, initargs=(self.payload, self.root, self.shared)
                )
            try:
                with _starting():
                    return self.pool.submit(_work, chunk.runs, chunk.deaths)
            except BrokenExecutor:  # it died idle: nobody's fault
                if last:
                    raise
                self.renew()
        raise AssertionError

    def started(self):
        self.once = self.once or (self.shared is not None and bool(self.shared[_STARTED]))
        return self.once

    def renew(self):
        self.started()
        self.pool.shutdown(wait=False)
        self.pool = None

    def stop(self):
        if self.shared is not None:
            self.shared[_STOP] = 1

    def close(self, at_once):
        pool, self.pool = self.pool, None
        if pool is None:
            return
        if at_once:
            for process in list((pool._processes or {}).values()):
                process.kill()
        pool.shutdown(wait=True, cancel_futures=at_once)


class _Threads(_Lane):
    """Threads of this process."""

    def __init__(self, experiment, root: _Root, workers: int, executor: Executor | None = None):
        super().__init__(depth=2 * workers)
        self.experiment, self.root, self.stopped = experiment, root, threading.Event()
        self.mine = executor is None
        self.pool = ThreadPoolExecutor(workers) if executor is None else executor

    def _submit(self, chunk):
        return self.pool.submit(_chunk, self.experiment, self.root, chunk.runs, self.stopped.is_set)

    def stop(self):
        self.stopped.set()
        for future in self.flying:
            future.cancel()

    def close(self, at_once):
        if self.mine:
            self.pool.shutdown(wait=not at_once, cancel_futures=at_once)


class _Foreign(_Lane):
    """Somebody else's executor, of any kind."""

    def __init__(self, experiment, root: _Root, executor: Executor, depth: int):
        super().__init__(depth)
        self.experiment, self.root, self.executor = experiment, root, executor

    def _submit(self, chunk):
        return self.executor.submit(_chunk_elsewhere, self.experiment, self.root, chunk.runs, chunk.deaths)

    def stop(self):
        for future in list(self.flying):
            future.cancel()


def _lanes(experiment, root: _Root, executor, count: int, workers: int | None) -> list[_Lane]:
    """Where the runs go; no lane if this process does them itself."""
    if isinstance(executor, ThreadPoolExecutor):
        return [_Threads(experiment, root, workers or _cores(), executor)]
    if executor is not None:
        return [_Foreign(experiment, root, executor, 2 * workers if workers else _IN_FLIGHT)]
    if (workers or _cores()) == 1:
        return []
    payload = _payload(experiment)
    if payload is None:
        return [_Threads(experiment, root, count)]
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # A worker imports the script that started it, and must not start workers itself.
        raise RuntimeError('a script must call ensemble.run under if __name__ == "__main__": its workers import it')
    return [_Process(payload, root) for _ in range(count)]


def _worker_died(error: BaseException) -> bool:
    """Whether the executor failed, not the experiment, whose exceptions come back as results."""
    if isinstance(error, (BrokenExecutor, CancelledError, asyncio.CancelledError, ConnectionError)):
        return True
    return type(error).__module__.split(".")[0] == "distributed"  # KilledWorker and its kin


# ---------------------------------------------------------------- the job


class _Queue:
    """Runs to do, cut into chunks."""

    def __init__(self, runs: np.ndarray, workers: int, chunk: int | None):
        self.fresh, self.next, self.again = runs, 0, deque()
        self.workers, self.chunk = workers, chunk
        self.seconds, self.measured = math.inf, 0  # of one run; runs in the last chunk

    def __len__(self) -> int:
        return len(self.fresh) - self.next + sum(len(chunk.runs) for chunk in self.again)

    def take(self) -> _Chunk:
        """The next chunk."""
        if self.again:
            return self.again.popleft()
        size = self._size(len(self.fresh) - self.next)
        runs = tuple(self.fresh[self.next : self.next + size].tolist())
        self.next += size
        return _Chunk(runs)

    def _size(self, left: int) -> int:
        if self.chunk is not None:
            return min(self.chunk, left)
        if not self.measured:
            return 1
        # Not more than eight times what was measured, and something left for everybody at the end.
        most = min(8 * self.measured, math.ceil(left / (2 * self.workers)))
        return max(1, int(min(most, _CHUNK_SECONDS / max(self.seconds, 1e-9))))

    def measure(self, block: _Block) -> None:
        """Learn from a finished chunk.  The last one counts: the first run may have compiled."""
        if len(block.runs):
            self.seconds, self.measured = block.seconds / len(block.runs), len(block.runs)


class _Job:
    """The state of one call of :func:`run`."""

    def __init__(self, experiment, store, queue, lanes, retries, path):
        self.experiment, self.store, self.queue, self.lanes = experiment, store, queue, lanes
        self.retries, self.path, self.advance = retries, path, lambda count: None
        self.bag: list = []  # results of this process itself that are not in the store yet
        self.lost: list[tuple[int, ...]] = []
        self.reason: BaseException | None = None  # of the last loss
        self.due, self.unsaved = time.monotonic() + _SAVE_SECONDS, False

    def go(self) -> None:
        """Do all runs."""
        if self.lanes:
            self._send()
            self._close(at_once=False)
        else:
            self._do()
        self._save()
        if self.lost:
            raise self._lost() from self.reason

    def _do(self) -> None:
        root = _root(self.store.seed)
        while self.queue:
            runs, start = self.queue.take().runs, time.perf_counter()
            failure = _fill(self.bag, self.experiment, root, runs, _never)
            block = _packed(self.bag, time.perf_counter() - start, failure)
            self._keep(block)
            self.bag = []
            self._tick()

    def _send(self) -> None:
        while self.queue or any(lane.flying for lane in self.lanes):
            for level in range(max(lane.depth for lane in self.lanes)):  # all get one before one gets two
                for lane in self.lanes:
                    if self.queue and len(lane.flying) <= level < lane.depth:
                        self._dispatch(lane, self.queue.take())
            # With a limit, so that Ctrl-C gets through on every system.
            wait([future for lane in self.lanes for future in lane.flying], 1.0, FIRST_COMPLETED)
            for lane in self.lanes:
                for future in [future for future in lane.flying if future.done()]:
                    self._settle(lane, future)
            self._tick()

    def _dispatch(self, lane: _Lane, chunk: _Chunk) -> None:
        try:
            lane.send(chunk)
        except BrokenExecutor as error:
            suspects = sorted({i for again in (chunk, *self.queue.again) if again.deaths for i in again.runs})
            raise Lost(
                f"the executor is broken, and only its owner can renew it; a worker died in one of {_listed(suspects)}",
                tuple(suspects),
            ) from error

    def _settle(self, lane: _Lane, future: Future) -> None:
        """A chunk has come back, or its worker has died."""
        try:
            block = future.result()
        except BaseException as error:
            if not _worker_died(error):
                raise
            self._died(lane, lane.flying.pop(future), error)
            return
        self._keep(block)
        del lane.flying[future]  # only now: Ctrl-C may come at any moment, and keeping twice does no harm

    def _died(self, lane: _Lane, chunk: _Chunk, error: BaseException) -> None:
        lane.renew()
        if not any(other.started() for other in self.lanes):
            raise Lost(
                "no worker process could start; in a script, call ensemble.run under "
                'if __name__ == "__main__": or with workers=1'
            )
        if chunk.deaths < self.retries:
            # One by one, so that the run that kills its worker takes no other along.
            self.queue.again.extend(_Chunk((i,), chunk.deaths + 1) for i in chunk.runs)
        else:
            self.lost.append(chunk.runs)
            self.reason = error
            if len(self.lost) >= _GIVE_UP:
                raise self._lost() from self.reason

    def _lost(self) -> Lost:
        runs = sorted(i for chunk in self.lost for i in chunk)
        tries = "once" if self.retries == 0 else f"{self.retries + 1} times"
        return Lost(
            f"the worker of {_listed(runs)} died {tries} (a crash in compiled code, or out of memory); "
            "ensemble.generator(seed, i) repeats run i alone",
            tuple(runs),
        )

    def _keep(self, block: _Block) -> None:
        self.store.keep(block)
        if len(block.runs):
            self.unsaved = True
            self.queue.measure(block)
            self.advance(len(block.runs))
        if block.failure is not None:
            self._raise(block.failure)

    def _raise(self, failure: _Failure) -> None:
        i, error = failure.run, failure.error
        key = (*_root(self.store.seed).spawn_key, i)
        error.add_note(f"In run {i}, spawn key {key}.  It can be repeated with rng = ensemble.generator(seed, {i}).")
        if error.__traceback__ is None:  # lost on the way from another process
            error.add_note(f"There:\n{failure.trace}")
        raise error

    def _tick(self) -> None:
        if self.path is not None and self.unsaved and time.monotonic() >= self.due:
            self._save()

    def _save(self) -> None:
        if self.path is None or not self.unsaved:
            return
        start = time.monotonic()
        self.store.write(self.path)
        self.unsaved = False
        self.due = time.monotonic() + max(_SAVE_SECONDS, _SAVE_SHARE * (time.monotonic() - start))

    def _close(self, at_once: bool) -> None:
        """Close all lanes, side by side: each waits for its worker to leave."""
        closing = [threading.Thread(target=lane.close, args=(at_once,)) for lane in self.lanes]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def rescue(self, error: BaseException) -> None:
        """Stop everything, and keep whatever is finished."""
        for lane in self.lanes:
            lane.stop()
        mine = [f for lane in self.lanes if not isinstance(lane, _Foreign) for f in lane.flying]
        wait(mine, _GRACE_SECONDS)
        blocks = [f.result() for lane in self.lanes for f in lane.flying if _has_result(f)]
        if self.bag:
            blocks.append(_packed(self.bag))
        for block in blocks:
            with contextlib.suppress(ValueError):  # of another shape: one error at a time
                self.store.keep(block)
                self.unsaved = True
        self._close(at_once=True)
        try:
            self._save()
        except OSError as failure:
            error.add_note(f"The finished runs could not be saved: {failure}")


def _listed(runs: list[int]) -> str:
    """Run numbers for a message."""
    more = f" and {len(runs) - 10} more" if len(runs) > 10 else ""
    return f"run{'' if len(runs) == 1 else 's'} {', '.join(map(str, runs[:10]))}{more}"


def _has_result(future: Future) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


@contextlib.contextmanager
def _bar(runs: int, done: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; calls say how many more runs are done."""
    if not shown:
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=runs, initial=done, unit="run", file=sys.stderr) as bar:
        yield bar.update


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ctrl-C has no effect inside."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)


# ---------------------------------------------------------------- results


class _Store:
    """Finished runs, in memory and on disk."""

    def __init__(self, seed, experiment: str):
        self.seed, self.experiment = seed, experiment
        self.blocks: dict[int, _Block] = {}  # by first run: keeping a block twice changes nothing
        self.layout: tuple[int, dict] | None = None  # a run, and its names and shapes

    def keep(self, block: _Block) -> None:
        """Take the results of a chunk."""
        if not len(block.runs):
            return
        first, layout = int(block.runs[0]), {name: a.shape[1:] for name, a in block.values.items()}
        if self.layout is None:
            self.layout = first, layout
        _agree(*self.layout, first, layout)
        self.blocks[first] = block

    def adopt(self, known: Ensemble) -> None:
        """Take the runs of an ensemble."""
        if known.experiment != self.experiment or _root(known.seed) != _root(self.seed):
            raise ValueError(
                f"resume must hold runs of {self.experiment} with seed {self.seed}, "
                f"got {known.experiment} with seed {known.seed}"
            )
        self.keep(_Block(known.index, known.values))

    def index(self) -> np.ndarray:
        """Numbers of the finished runs, increasing."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(block.runs for block in self.blocks.values())]))

    def merged(self) -> _Block:
        """All finished runs in order."""
        blocks = list(self.blocks.values())
        if len(blocks) > 1 or (blocks and np.any(np.diff(blocks[0].runs) <= 0)):
            index, rows = np.unique(np.concatenate([block.runs for block in blocks]), return_index=True)
            names = blocks[0].values
            values = {name: np.concatenate([block.values[name] for block in blocks])[rows] for name in names}
            blocks = [_Block(index, values)]
            self.blocks = {int(index[0]): blocks[0]}
        return blocks[0] if blocks else _Block(np.zeros(0, np.int64), {})

    def ensemble(self, runs: int) -> Ensemble:
        """The first `runs` of them; a file may hold more."""
        block = self.merged()
        count = int(np.searchsorted(block.runs, runs))
        values = {name: a[:count] for name, a in block.values.items()} if count else {}
        return Ensemble(self.seed, runs, block.runs[:count], values, self.experiment)

    def _about(self) -> dict:
        return {"format": _FORMAT, "experiment": self.experiment, "seed": list(_root(self.seed))}

    def write(self, path: Path) -> None:
        """Write the file under another name first: it is there whole, or as it was."""
        block = self.merged()
        about = self._about() | {"names": list(block.values)}
        arrays = {f"values_{k}": a for k, a in enumerate(block.values.values())}
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with open(part, "wb") as file:
                np.savez(file, about=np.array(json.dumps(about)), index=block.runs, **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def read(self, path: Path) -> None:
        """Take the runs of a file, if there is one."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                about = json.loads(str(file["about"]))
                index = file["index"].astype(np.int64, casting="safe")
                values = {name: file[f"values_{k}"] for k, name in enumerate(about["names"])}
            whole = about["format"] == _FORMAT and index.ndim == 1 and np.all(np.diff(index) > 0) and np.all(index >= 0)
            if not whole or any(a.ndim < 1 or len(a) != len(index) for a in values.values()):
                raise ValueError("its parts do not fit")
        except (ValueError, TypeError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"save must be a new file or one that ensemble.run wrote, got {path}") from error
        expected = json.loads(json.dumps(self._about()))
        for key, what in (("experiment", "experiment"), ("seed", "seed (entropy, spawn key, pool size)")):
            if about[key] != expected[key]:
                raise ValueError(
                    f"save must hold runs of the same {what}: {path} has {about[key]}, this call {expected[key]}"
                )
        self.keep(_Block(index, values))
