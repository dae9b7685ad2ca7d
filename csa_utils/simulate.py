"""The front door: parameters in, trajectory out."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from . import checks
from .attention import Dynamics
from .integrators import METHODS, Meeting, Unfinished, integrate, integrate_all

__all__ = ["Trajectory", "simulate"]

#: Horizons t |V| from which "auto" steps implicitly.
LONG = 1000.0


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """Tokens over time, and what made them.

    Attributes
    ----------
    t : ndarray, shape (T,)
        Times.
    x : ndarray, shape (T, ..., n, d)
        Tokens at these times, unit vectors in the rows.  Time is the first axis,
        so every function that takes tokens also takes a whole trajectory.
    dynamics : Dynamics
        Q, K, V, beta and the mask.
    method : str
        The solver that ran ("auto" is resolved).
    order : int or None
        Its convergence order.
    options : dict
        Its step `dt`, or its tolerances: `tol`, or `rtol` and `atol`.
    evaluations : int
        How often the field was evaluated, over all runs.
    steps, rejected : int or None
        Steps taken, and steps tried in vain, over all runs; compiled methods only.
    events : ndarray, shape (..., E)
        When each event first happened, NaN if it did not.
    end : ndarray, shape (...)
        Time at which each run ended: the last time, or an event that stopped it.  After
        it, `x` is NaN; times that no run has reached are left out.
    final : ndarray, shape (..., n, d)
        Tokens at that time.
    """

    t: np.ndarray
    x: np.ndarray
    dynamics: Dynamics
    method: str
    order: int | None
    options: dict
    evaluations: int
    steps: int | None
    rejected: int | None
    events: np.ndarray
    end: np.ndarray
    final: np.ndarray

    @property
    def n(self) -> int:
        """Number of tokens in a sequence."""
        return self.x.shape[-2]

    @property
    def d(self) -> int:
        """Dimension of the ambient space."""
        return self.x.shape[-1]

    @property
    def batch(self) -> tuple[int, ...]:
        """Shape of the batch axes between time and tokens."""
        return self.x.shape[1:-2]

    def __repr__(self) -> str:
        mask = "causal" if self.dynamics.causal else "full"
        options = ", ".join(f"{k}={v:g}" for k, v in self.options.items())
        return (
            f"Trajectory({mask} attention, n={self.n}, d={self.d}, batch={self.batch}, "
            f"{len(self.t)} times to t={self.end.max():g}; {self.method} with {options}, "
            + (f"{self.steps} steps and {self.rejected} rejected, " if self.steps is not None else "")
            + f"{self.evaluations} field evaluations)"
        )


def simulate(
    x0,
    t,
    *,
    Q=None,
    K=None,
    V=None,
    beta=1.0,
    causal: bool = True,
    frozen=None,
    frozen_weights=None,
    method: str = "auto",
    dt: float | None = None,
    tol: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    events: Sequence[Meeting] = (),
    progress: bool | None = None,
) -> Trajectory:
    """Run causal attention dynamics (CSA), or full attention (SA) without the mask.

    Parameters
    ----------
    x0 : array_like, shape (..., n, d)
        Tokens at time 0: unit vectors in the rows, any leading batch axes.
    t : array_like, shape (T,)
        Times at which the tokens are wanted: >= 0, strictly increasing.  Times such as
        1e50, at which the last clusters merge, are ordinary.
    Q, K, V : array_like, shape (..., d, d), optional
        Query, key and value matrices; the identity if left out.  Leading axes
        broadcast against those of `x0`.
    beta : float or array_like
        Inverse temperature, finite and >= 0; may have batch axes as well.
    causal : bool
        With the mask (CSA) or without it (SA).
    frozen, frozen_weights : array_like, shapes (m, d) and (m,), optional
        Tokens that never move and are seen by all, and how often each counts.
    method : str
        "auto", or a key of `csa_utils.integrators.METHODS`.  "auto" takes "rk4" if `dt`
        is given, "DOP853" if `rtol` or `atol` is; else "implicit" under the mask when
        the horizon t |V| is above `LONG`, since then clusters make the equation stiff;
        else "explicit".
    dt : float, optional
        Step of a fixed-step method.
    tol : float, optional
        Largest error of a token in one step of "explicit" or "implicit", in radians;
        1e-10 and 1e-6 if left out.
    rtol, atol : float, optional
        Tolerances of scipy's methods; 1e-10 and 1e-12 if left out.
    events : sequence of Meeting, optional
        Merges and collapses to look for, and perhaps to stop at; for "explicit" and
        "implicit".
    progress : bool, optional
        Show on standard error how far the run is; by default on a terminal, when it
        takes more than a second.

    Returns
    -------
    Trajectory

    Raises
    ------
    ValueError
        If an argument breaks its rule; the message names it.
    ArithmeticError
        If the solver fails.
    Unfinished
        On Ctrl-C in a compiled method: a KeyboardInterrupt whose attribute `partial` is
        the Trajectory so far.

    Examples
    --------
    >>> import numpy as np
    >>> from csa_utils import sphere
    >>> x0 = sphere.uniform(8, 2, np.random.default_rng(0))
    >>> simulate(x0, [0.0, 1.0], beta=4.0).x.shape
    (2, 8, 2)
    """
    x0, t = checks.tokens("x0", x0), checks.times(t)
    dynamics = Dynamics(
        x0.shape[-1], Q=Q, K=K, V=V, beta=beta, causal=causal, frozen=frozen, frozen_weights=frozen_weights
    )
    x0 = dynamics.check(x0, "x0")
    # Parameters with batch axes of their own run on as many copies of the tokens.
    batch = np.broadcast_shapes(x0.shape[:-2], dynamics.batch)
    x0 = np.broadcast_to(x0, (*batch, *x0.shape[-2:]))
    if method == "auto":
        method = _choose(dynamics, t, dt, rtol, atol)
    elif not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method must be 'auto' or one of {', '.join(METHODS)}, got {method!r}")
    if METHODS[method].stepper:
        for name, value in (("dt", dt), ("rtol", rtol), ("atol", atol)):
            if value is not None:
                raise ValueError(f"{name} must be left out for {method!r}, which takes tol, got {value!r}")
        return _compiled(dynamics, x0, t, method, tol, events, progress)
    if len(events):
        raise ValueError(f"events must be left out for {method!r}: take 'explicit' or 'implicit'")
    if tol is not None:
        raise ValueError(f"tol must be left out for {method!r}, got {tol!r}")
    solution = integrate(dynamics.field, x0, t, method, dt=dt, rtol=rtol, atol=atol)
    return Trajectory(
        t=solution.t,
        x=solution.x,
        dynamics=dynamics,
        method=method,
        order=solution.method.order,
        options=solution.options,
        evaluations=solution.evaluations,
        steps=None,
        rejected=None,
        events=np.empty((*batch, 0)),
        end=np.full(batch, solution.t[-1]),
        final=solution.x[-1].copy(),
    )


def _choose(dynamics: Dynamics, t, dt, rtol, atol) -> str:
    if dt is not None:
        return "rk4"
    if rtol is not None or atol is not None:
        return "DOP853"
    long = t[-1] * np.linalg.norm(dynamics.V, 2, axis=(-2, -1)).max() > LONG
    return "implicit" if dynamics.causal and long else "explicit"


def _compiled(dynamics, x0, t, method, tol, events, progress) -> Trajectory:
    *batch, n, d = x0.shape
    m = len(dynamics.frozen)
    events = tuple(events)
    for event in events:
        if isinstance(event, Meeting) and event.pairs.max() >= n:
            raise ValueError(f"events must name tokens below n = {n}, got {event.pairs.max()}")
    if m:  # frozen tokens come first in a problem
        events = tuple(replace(e, pairs=e.pairs + m) if isinstance(e, Meeting) else e for e in events)
    starts = np.ascontiguousarray(dynamics.keys(x0).reshape(-1, m + n, d))
    problems = dynamics.problems(n)
    if len(problems) == 1:
        problems = problems * len(starts)
    elif tuple(batch) != dynamics.batch:
        which = np.broadcast_to(np.arange(len(problems)).reshape(dynamics.batch), batch).ravel()
        problems = [problems[i] for i in which]
    kwargs = {"tol": tol, "events": events, "watch": _Watch(t[-1], progress)}
    try:
        with kwargs["watch"]:
            solutions = integrate_all(problems, starts, t, method, **kwargs)
    except Unfinished as interrupt:
        raise Unfinished(_trajectory(dynamics, t, method, tuple(batch), m, interrupt.partial)) from None
    return _trajectory(dynamics, t, method, tuple(batch), m, solutions)


def _trajectory(dynamics, t, method, batch, m, solutions) -> Trajectory:
    reached = max(len(s.t) for s in solutions)
    n, d = solutions[0].end[1].shape
    x = np.full((reached, len(solutions), n - m, d), np.nan)
    for i, s in enumerate(solutions):
        x[: len(s.t), i] = s.x[:, m:]
    return Trajectory(
        t=t[:reached].copy(),
        x=x.reshape(reached, *batch, n - m, d),
        dynamics=dynamics,
        method=method,
        order=METHODS[method].order,
        options=solutions[0].options,
        evaluations=sum(s.evaluations for s in solutions),
        steps=sum(s.steps for s in solutions),
        rejected=sum(s.rejected for s in solutions),
        events=np.array([s.events for s in solutions]).reshape(*batch, -1),
        end=np.array([s.end[0] for s in solutions]).reshape(batch),
        final=np.array([s.end[1][m:] for s in solutions]).reshape(*batch, n - m, d),
    )


class _Watch:
    """A line on a terminal that says how far a long run is; nothing anywhere else."""

    def __init__(self, end: float, progress: bool | None) -> None:
        if not (progress is None or isinstance(progress, (bool, np.bool_))):
            raise ValueError(f"progress must be True, False or None, got {progress!r}")
        self.end, self.shown = end, False
        self.show = sys.stderr.isatty() if progress is None else bool(progress)
        self.begin = self.last = time.monotonic()

    def __call__(self, reached: list[float]) -> None:
        now = time.monotonic()
        if not self.show or now - self.begin < 1 or now - self.last < 0.2:
            return
        self.last, self.shown = now, True
        done = sum(r >= self.end for r in reached)
        runs = f", {done} of {len(reached)} runs" if len(reached) > 1 else ""
        print(f"\rt = {min(reached):.4g} of {self.end:.4g}{runs}  ", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> None:
        self.begin = self.last = time.monotonic()

    def __exit__(self, *_) -> None:
        if self.shown:
            print("\r" + 70 * " " + "\r", end="", file=sys.stderr, flush=True)
