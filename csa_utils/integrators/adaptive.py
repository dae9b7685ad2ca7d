"""Adaptive steps to the end of time: step control, output, events.

One compiled loop for every method.  A method is three compiled functions: try a step,
prepare its interpolant, interpolate.  They are arguments of the loop, as the field is.

Long times need three things.  Errors are measured per token and in absolute terms.  The
step is not tied to the spacing of floating-point numbers near t: at t = 1e50 a merge
takes less time than one such spacing, so time is kept in two parts and a step may leave
the first part as it is.  And the step may grow several times over, so that 1e50 is some
hundred steps away.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
from numba import njit, types
from numba.core.dispatcher import Dispatcher

from ..compiled import loop
from .problem import MATRIX, VECTOR, Problem

__all__ = ["State", "Stepper"]

_INT, _REAL, _FLAG = numba.int64, numba.float64, numba.boolean
_STORE = types.UniTuple(MATRIX, 6)
_EVENTS = types.Tuple((types.Array(_INT, 2, "C"), types.Array(_INT, 1, "C"), VECTOR, types.Array(_FLAG, 1, "C")))
_COSTS = types.UniTuple(_INT, 3)

# Places in the loop's state vector.
T, T_LOW, STEP, TAKEN, REJECTED, EVALUATIONS, NEXT, STATUS, LAST_ERROR, LAST_STEP = range(10)
RUNNING, FINISHED, STOPPED, STUCK = range(4)

_LONGEST = 1e290  # longer steps overflow in products with a Jacobian
_SHORTEST = 1e-280


@dataclass(frozen=True, eq=False)
class Stepper:
    """An adaptive method.

    Attributes
    ----------
    name : str
    order : int
        Of the error at a fixed time, in the step.
    attempt : function (velocity, linearise, solve, system, work, store, x, h, fresh, y) -> error
        Steps from x to y; `fresh` tells that x is not the one of the last call.  Returns
        the estimated error of the worst token, infinite if the step cannot be used.
    prepare : function (velocity, system, store, x, h)
    interpolate : function (share, store, x, y)
        Tokens y at a share in [0, 1] of the last step.
    store : function (n, d) -> tuple of six arrays
        What the three functions share.
    evaluations : tuple of three int
        Evaluations of the field in an attempt, more if fresh, and in prepare.
    growth : float
        Largest ratio of two consecutive steps.
    linear : bool
        Whether `linearise` and `solve` are used.
    """

    name: str
    order: int
    attempt: Callable
    prepare: Callable
    interpolate: Callable
    store: Callable[[int, int], tuple]
    evaluations: tuple[int, int, int]
    growth: float
    linear: bool


@loop(fastmath={"contract", "reassoc", "nsz"})
def _gaps(x, pairs, begin, chords, gap):
    """Largest chord of each event's pairs, minus its threshold."""
    for e in range(len(chords)):
        largest = 0.0
        for p in range(begin[e], begin[e + 1]):
            total = 0.0
            for a in range(x.shape[1]):
                delta = x[pairs[p, 0], a] - x[pairs[p, 1], a]
                total += delta * delta
            largest = max(largest, total)
        gap[e] = math.sqrt(largest) - chords[e]


def _loop(
    attempt, prepare, interpolate, velocity, linearise, solve, system, work, store, costs, order, growth, tol, times,
    x, state, outputs, events, happened, steps,
):  # fmt: skip
    """Advance `x` by at most `steps` steps; everything that outlives the call is an argument."""
    pairs, begin, chords, stop = events
    y, z = np.empty_like(x), np.empty_like(x)
    before, after, there = np.empty(len(chords)), np.empty(len(chords)), np.empty(len(chords))
    _gaps(x, pairs, begin, chords, before)
    end = times[-1]
    power = -1.0 / order
    fresh = True
    for _ in range(steps):
        t, h = state[T], state[STEP]
        left = (end - t) - state[T_LOW]
        if left <= 0.0:
            state[STATUS] = FINISHED
            return
        last = h >= left
        if last:
            h = left
        error = attempt(velocity, linearise, solve, system, work, store, x, h, fresh, y) / tol
        state[EVALUATIONS] += costs[0] + (costs[1] if fresh else 0)
        if not error <= 1.0:
            fresh = False
            state[REJECTED] += 1
            state[STEP] = h * (max(0.2, 0.9 * error**power) if math.isfinite(error) else 0.2)
            if state[STEP] < _SHORTEST:
                state[STATUS] = STUCK
                return
            continue
        # Gustafsson's controller: if steps had to shrink, as on the way to a merge, the
        # next one has to as well.
        error = max(error, 1e-12)
        factor = 0.9 * error**power
        if state[LAST_STEP] > 0.0:
            trend = 0.9 * (h / state[LAST_STEP]) * (error * error / state[LAST_ERROR]) ** power
            factor = min(factor, trend)
        state[LAST_ERROR], state[LAST_STEP] = max(error, 1e-2), h
        low = state[T_LOW] + h
        t_new = t + low
        low -= t_new - t
        if last:
            t_new, low = end, 0.0
        _gaps(y, pairs, begin, chords, after)
        news = False
        for e in range(len(chords)):
            news = news or (happened[e] < 0.0 and after[e] <= 0.0)
        i = int(state[NEXT])
        if news or (i < len(times) and times[i] < t_new):
            prepare(velocity, system, store, x, h)
            state[EVALUATIONS] += costs[2]
        if news:
            first = 1.0  # share of the step at which a stopping event happens
            for e in range(len(chords)):
                if happened[e] < 0.0 and after[e] <= 0.0:
                    lo, hi = 0.0, 1.0
                    if before[e] <= 0.0:
                        hi = 0.0
                    else:
                        for _ in range(60):
                            share = 0.5 * (lo + hi)
                            interpolate(share, store, x, z)
                            _gaps(z, pairs, begin, chords, there)
                            if there[e] <= 0.0:
                                hi = share
                            else:
                                lo = share
                    happened[e] = t + (state[T_LOW] + hi * h)
                    if stop[e]:
                        first = min(first, hi)
                        state[STATUS] = STOPPED
            if state[STATUS] == STOPPED:
                interpolate(first, store, x, y)
                t_new, low = t + (state[T_LOW] + first * h), 0.0
                for e in range(len(chords)):  # what comes after the stop has not happened
                    if happened[e] > t_new:
                        happened[e] = -1.0
        before[:] = after
        while i < len(times) and times[i] <= t_new:
            share = ((times[i] - t) - state[T_LOW]) / h
            if times[i] == t_new or share >= 1.0:
                outputs[i] = y
            else:
                interpolate(max(share, 0.0), store, x, z)
                outputs[i] = z
            i += 1
        state[NEXT] = i
        x[:] = y
        state[T], state[T_LOW] = t_new, low
        state[STEP] = min(h * min(growth, max(0.2, factor)), _LONGEST)
        state[TAKEN] += 1
        fresh = True
        if last and state[STATUS] == RUNNING:
            state[STATUS] = FINISHED
        if state[STATUS] != RUNNING:
            return


def _no_linearise(x, system, work, f):
    """For methods that need none."""


def _no_solve(step, fresh, system, work, r):
    """For methods that need none."""


@functools.cache
def _signatures(system, work) -> dict:
    velocity = types.void(MATRIX, system, MATRIX)
    linearise = types.void(MATRIX, system, work, MATRIX)
    solve = types.void(_REAL, _FLAG, system, work, MATRIX)
    called = [types.FunctionType(s) for s in (velocity, linearise, solve)]
    attempt = _REAL(*called, system, work, _STORE, MATRIX, _REAL, _FLAG, MATRIX)
    prepare = types.void(called[0], system, _STORE, MATRIX, _REAL)
    interpolate = types.void(_REAL, _STORE, MATRIX, MATRIX)
    loop = types.void(
        *[types.FunctionType(s) for s in (attempt, prepare, interpolate)], *called, system, work, _STORE, _COSTS, _REAL,
        _REAL, _REAL, VECTOR, MATRIX, VECTOR, types.Array(_REAL, 3, "C"), _EVENTS, VECTOR, _INT,
    )  # fmt: skip
    return {
        "velocity": velocity, "linearise": linearise, "solve": solve, "attempt": attempt, "prepare": prepare,
        "interpolate": interpolate, "loop": loop,
    }  # fmt: skip


@functools.cache
def _compiled(function: Callable, name: str, system, work):
    """A function compiled for its place in the loop, stored between runs."""
    signature = _signatures(system, work)[name]
    if isinstance(function, Dispatcher):  # compiled elsewhere, with options of its own
        function.compile(signature.args)
        return function
    # No reassociation: with it, x - x, by which NaN is recognised, becomes 0.
    return njit(signature, cache=True, nogil=True, fastmath={"contract"})(function)


class State:
    """A run on its way: where it is, what it has given, how to go on."""

    def __init__(self, stepper: Stepper, problem: Problem, x0, times, events: tuple, tol: float) -> None:
        self.stepper, self.problem, self.tol, self.times = stepper, problem, tol, times
        self.x = np.ascontiguousarray(x0, dtype=float).copy()
        n, d = self.x.shape
        self.state = np.zeros(10)
        self.state[STEP] = min(times[-1], 0.1 / problem.rate if problem.rate > 0 else np.inf)
        self.outputs = np.full((len(times), n, d), np.nan)
        if times[0] == 0:
            self.outputs[0] = self.x
            self.state[NEXT] = 1
        if times[-1] == 0:
            self.state[STATUS] = FINISHED
        self.events = events
        self.happened = np.full(len(events[2]), -1.0)
        self.store = stepper.store(n, d)
        self.work = problem.work(n if stepper.linear else 0)

    def advance(self, steps: int) -> bool:
        """Take at most `steps` steps; True while there is more to do."""
        s, p = self.stepper, self.problem
        key = p.system_type, numba.typeof(self.work)
        linear = (p.linearise, p.solve) if s.linear else (_no_linearise, _no_solve)
        _compiled(_loop, "loop", *key)(
            _compiled(s.attempt, "attempt", *key), _compiled(s.prepare, "prepare", *key),
            _compiled(s.interpolate, "interpolate", *key), _compiled(p.velocity, "velocity", *key),
            _compiled(linear[0], "linearise", *key), _compiled(linear[1], "solve", *key), p.system, self.work,
            self.store, s.evaluations, float(s.order), s.growth, self.tol, self.times, self.x, self.state,
            self.outputs, self.events, self.happened, steps,
        )  # fmt: skip
        return self.state[STATUS] == RUNNING
