"""Solvers for any tangent field on a product of spheres.

A *field* is a function from tokens (..., n, d), unit vectors in the last axis, to
their velocities, tangent vectors of the same shape.  Nothing here knows attention.
A :class:`Problem` is a field that is compiled; the two adaptive methods of this book,
``explicit`` and ``implicit``, ask for one.

A field F on the sphere is continued to all of R^d as f(y) = |y| F(y/|y|).  Then F is
only ever called at unit vectors, and the direction y/|y| of a solution of y' = f(y)
solves the equation on the sphere exactly, whatever rounding does to |y|.  This
matters: the sphere repels the plain ambient formula when, say, V = -I.

One file a family: ``fixed`` (Euler, classical Runge-Kutta), ``explicit``, ``implicit``
with their common loop in ``adaptive``, and ``judges`` (scipy).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import numpy as np

from .. import checks
from . import fixed, judges
from .adaptive import EVALUATIONS, NEXT, REJECTED, STATUS, STUCK, TAKEN, State, Stepper, T
from .explicit import EXPLICIT
from .implicit import IMPLICIT
from .problem import Meeting, Problem, event_arrays

__all__ = ["METHODS", "Meeting", "Method", "Problem", "Solution", "Unfinished", "integrate", "integrate_all"]

Field = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Method:
    """A solver: its convergence order, whether it picks its own steps, what it needs.

    `order` is the order of the error at a fixed time in the step size, or None where
    the method varies it.  `stepper` is there for the compiled methods, which need a
    :class:`Problem` and take a tolerance `tol`; `tol` is its value if left out.
    """

    name: str
    order: int | None
    adaptive: bool
    stepper: Stepper | None = dataclass_field(default=None, repr=False)
    tol: float | None = None


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver returns.

    Attributes
    ----------
    t : ndarray, shape (T,)
        The times asked for, up to the end of the run.
    x : ndarray, shape (T, ..., n, d)
        Unit vectors at the times `t`.
    method : Method
    evaluations : int
        How often the field was called.
    options : dict
        The step or the tolerances that were used.
    steps, rejected : int or None
        Steps taken and steps tried in vain, by the compiled methods.
    events : ndarray, shape (E,)
        When each event first happened; NaN if it did not.
    end : tuple (float, ndarray)
        Time and tokens at the end of the run: the last time asked for, or the time of
        the event that stopped it.
    """

    t: np.ndarray
    x: np.ndarray
    method: Method
    evaluations: int
    options: dict
    steps: int | None
    rejected: int | None
    events: np.ndarray
    end: tuple


class Unfinished(KeyboardInterrupt):
    """Ctrl-C during a long run.  `partial` holds what was done, one item a run."""

    def __init__(self, partial: list) -> None:
        super().__init__("interrupted; what was done is in the attribute `partial`")
        self.partial = partial


#: A fixed-step run that would take more steps than this is refused.
MOST_STEPS = 10**8

#: The solvers that :func:`integrate` knows.
METHODS = {
    m.name: m
    for m in (
        *(Method(name, order, adaptive=False) for name, order in fixed.ORDERS.items()),
        Method("explicit", EXPLICIT.order, adaptive=True, stepper=EXPLICIT, tol=1e-10),
        Method("implicit", IMPLICIT.order, adaptive=True, stepper=IMPLICIT, tol=1e-6),
        *(Method(name, order, adaptive=True) for name, order in judges.ORDERS.items()),
    )
}


def integrate(
    field: Field,
    x0,
    t,
    method: str = "DOP853",
    *,
    dt: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    tol: float | None = None,
    events: Sequence[Meeting] = (),
) -> Solution:
    """Solve x' = field(x) on the sphere from x(0) = `x0`.

    Parameters
    ----------
    field : callable
        Tokens to velocities, both of the shape of `x0`; a :class:`Problem` for
        "explicit" and "implicit".
    x0 : array_like, shape (..., n, d)
        Tokens at time 0, unit vectors in the rows.
    t : array_like, shape (T,)
        Times at which the solution is wanted: >= 0, strictly increasing.
    method : str
        A key of `METHODS`: "euler" or "rk4" with the fixed step `dt`; "explicit"
        (order 8) or "implicit" (order 4, for long times), compiled, with the tolerance
        `tol`; or one of scipy's "RK45", "DOP853", "Radau", "LSODA".
    dt : float
        Largest step of a fixed-step method, > 0.  The time between two outputs is
        divided into equal steps.
    rtol, atol : float, optional
        Tolerances of scipy's methods; 1e-10 and 1e-12 if left out.
    tol : float, optional
        Tolerance of a compiled method: the largest error of a token in one step, in
        radians.  1e-10 (explicit) and 1e-6 (implicit) if left out.
    events : sequence of Meeting
        Compiled methods only.

    Returns
    -------
    Solution

    Raises
    ------
    ValueError
        If an argument breaks its rule, or the field returns another shape.
    ArithmeticError
        If the solver fails or the solution is not finite.
    Unfinished
        On Ctrl-C in a compiled method; `partial` holds a :class:`Solution` so far.
    """
    x0, t = checks.tokens("x0", x0), checks.times(t).copy()
    chosen = _method(method)
    if not callable(field):
        raise ValueError(f"field must be a function of the tokens, got {field!r}")
    if chosen.stepper:
        if not isinstance(field, Problem):
            raise ValueError(f"field must be a compiled Problem for the method {method!r}, got {field!r}")
        if x0.shape != (field.n, field.d):
            raise ValueError(f"x0 must have shape {(field.n, field.d)} for this problem, got {x0.shape}")
        only = {"dt": dt, "rtol": rtol, "atol": atol}
        for name, value in only.items():
            if value is not None:
                raise ValueError(f"{name} must be left out for {method!r}, which takes tol, got {value!r}")
        return integrate_all([field], x0[None], t, method, tol=tol, events=events)[0]
    if tol is not None:
        raise ValueError(f"tol must be left out for {method!r}, got {tol!r}")
    if len(events):
        raise ValueError(f"events must be left out for {method!r}: only compiled methods look for them")
    counted = _Counted(field)
    velocity = checks.array("field", counted.at(x0))
    if velocity.shape != x0.shape:
        raise ValueError(f"field must return the shape of its tokens {x0.shape}, got {velocity.shape}")
    if chosen.adaptive:
        if dt is not None:
            raise ValueError(f"dt must be left out for the adaptive method {method!r}, got {dt!r}")
        options = {
            "rtol": _tolerance("rtol", 1e-10 if rtol is None else rtol),
            "atol": _tolerance("atol", 1e-12 if atol is None else atol),
        }
        x = judges.run(counted, x0, t, method, **options)
    else:
        if dt is None:
            raise ValueError(f"dt must be given for the fixed-step method {method!r}, got None")
        if rtol is not None or atol is not None:
            raise ValueError(f"rtol and atol must be left out for {method!r}, got {rtol!r} and {atol!r}")
        options = {"dt": checks.positive("dt", dt)}
        if t[-1] / MOST_STEPS > options["dt"]:
            raise ValueError(f"dt must be at least t / {MOST_STEPS:g} = {t[-1] / MOST_STEPS:g}, got {dt!r}")
        x = fixed.run(counted, x0, t, method, **options)
    if t[0] == 0:
        x[0] = x0  # not a copy that interpolation has rounded
    if not np.all(np.isfinite(x)):
        raise ArithmeticError(f"{method} left the finite numbers; the field or the step is too large")
    return Solution(t, x, chosen, counted.calls, options, None, None, np.empty(0), (t[-1], x[-1]))


def integrate_all(
    problems: Sequence[Problem],
    x0,
    t,
    method: str,
    *,
    tol: float | None = None,
    events: Sequence[Meeting] = (),
    threads: int | None = None,
    watch: Callable[[list[float]], None] | None = None,
) -> list[Solution]:
    """Many independent compiled problems, spread over threads; each picks its own steps.

    Parameters
    ----------
    problems : sequence of Problem, length R
    x0 : array_like, shape (R, n, d)
        Their starts.
    t : array_like, shape (T,)
        Times, the same for all.
    method : str
        "explicit" or "implicit".
    tol, events
        As for :func:`integrate`.
    threads : int, optional
        The machine's cores if left out.
    watch : function, optional
        Called a few times a second with the time that each run has reached.

    Returns
    -------
    list of Solution

    Raises
    ------
    ValueError, ArithmeticError, Unfinished
        As for :func:`integrate`.
    """
    x0, t = checks.tokens("x0", x0), checks.times(t).copy()
    chosen = _method(method)
    if not chosen.stepper:
        raise ValueError(f"method must be 'explicit' or 'implicit' here, got {method!r}")
    if x0.ndim != 3 or len(x0) != len(problems):
        raise ValueError(f"x0 must have shape ({len(problems)}, n, d), one start a problem, got {x0.shape}")
    tol = _tolerance("tol", chosen.tol if tol is None else tol)
    for problem in problems:
        if chosen.stepper.linear and problem.linearise is None:
            raise ValueError(f"method must not be {method!r} for this problem: its Jacobian is not triangular")
    arrays = event_arrays(tuple(events), x0.shape[1])
    states = [State(chosen.stepper, p, x, t, arrays, tol) for p, x in zip(problems, x0, strict=True)]
    stop = threading.Event()

    def run(state: State) -> None:
        # In pieces of some tenths of a second, between which Ctrl-C and `watch` get their turn.
        pairs = max(state.problem.n**2, 1000)
        while not stop.is_set() and state.advance(max(1, 10**7 // pairs)):
            if watch and len(states) == 1:
                watch([state.state[T]])

    try:
        if len(states) == 1:
            run(states[0])
        else:
            with ThreadPoolExecutor(threads or _cores()) as pool:
                futures = [pool.submit(run, state) for state in states]
                try:
                    for future in futures:
                        while watch and not future.done():
                            watch([s.state[T] for s in states])
                            stop.wait(0.2)
                        future.result()
                except BaseException:
                    stop.set()
                    for future in futures:
                        future.cancel()
                    raise
    except KeyboardInterrupt:
        raise Unfinished([_solution(s, chosen, tol) for s in states]) from None
    for state in states:
        if state.state[STATUS] == STUCK:
            raise ArithmeticError(
                f"{method} stopped at t = {state.state[T]:g}: no step is short enough, "
                "so the field is not finite or not smooth"
            )
    return [_solution(s, chosen, tol) for s in states]


def _solution(state: State, method: Method, tol: float) -> Solution:
    s = state.state
    given = int(s[NEXT])
    happened = np.where(state.happened < 0, np.nan, state.happened)
    return Solution(
        t=state.times[:given],
        x=state.outputs[:given],
        method=method,
        evaluations=int(s[EVALUATIONS]),
        options={"tol": tol},
        steps=int(s[TAKEN]),
        rejected=int(s[REJECTED]),
        events=happened,
        end=(float(s[T]), state.x.copy()),
    )


class _Counted:
    """A field, continued to R^d, that counts its calls."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.calls = 0

    def at(self, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        return self.field(x)

    def __call__(self, y: np.ndarray) -> np.ndarray:
        norm = np.linalg.norm(y, axis=-1, keepdims=True)
        return norm * self.at(y / norm)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _method(method) -> Method:
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return METHODS[method]


def _tolerance(name: str, value) -> float:
    value = checks.positive(name, value)
    if not 3e-14 <= value < 1:
        raise ValueError(f"{name} must be in [3e-14, 1), got {value!r}")
    return value
