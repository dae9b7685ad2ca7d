"""Solvers for any tangent field on a product of spheres.

A *field* is a function from tokens (..., n, d), unit vectors in the last axis, to
their velocities, tangent vectors of the same shape.  Nothing here knows attention.

A field F on the sphere is continued to all of R^d as f(y) = |y| F(y/|y|).  Then F is
only ever called at unit vectors, and the direction y/|y| of a solution of y' = f(y)
solves the equation on the sphere exactly, whatever rounding does to |y|.  This
matters: the sphere repels the plain ambient formula when, say, V = -I.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.integrate import solve_ivp

from . import checks

__all__ = ["METHODS", "Method", "Solution", "integrate"]

Field = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Method:
    """A solver: its convergence order and whether it picks its own steps.

    `order` is the order of the error at a fixed time in the step size, or None where
    the method varies it.
    """

    name: str
    order: int | None
    adaptive: bool


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver returns.

    Attributes
    ----------
    t : ndarray, shape (T,)
    x : ndarray, shape (T, ..., n, d)
        Unit vectors at the times `t`.
    method : Method
    evaluations : int
        How often the field was called.
    options : dict
        The step or the tolerances that were used.
    """

    t: np.ndarray
    x: np.ndarray
    method: Method
    evaluations: int
    options: dict


def _euler(f: Field, y: np.ndarray, h: float) -> np.ndarray:
    return y + h * f(y)


def _rk4(f: Field, y: np.ndarray, h: float) -> np.ndarray:
    a = f(y)
    b = f(y + h / 2 * a)
    c = f(y + h / 2 * b)
    return y + h / 6 * (a + 2 * b + 2 * c + f(y + h * c))


_STEPS = {"euler": _euler, "rk4": _rk4}

#: A fixed-step run that would take more steps than this is refused.
MOST_STEPS = 10**8

#: The solvers that :func:`integrate` knows.
METHODS = {
    m.name: m
    for m in (
        Method("euler", 1, adaptive=False),
        Method("rk4", 4, adaptive=False),
        Method("RK45", 5, adaptive=True),
        Method("DOP853", 8, adaptive=True),
        Method("Radau", 5, adaptive=True),
        Method("LSODA", None, adaptive=True),
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
) -> Solution:
    """Solve x' = field(x) on the sphere from x(0) = `x0`.

    Parameters
    ----------
    field : callable
        Tokens to velocities, both of the shape of `x0`.
    x0 : array_like, shape (..., n, d)
        Tokens at time 0, unit vectors in the rows.
    t : array_like, shape (T,)
        Times at which the solution is wanted: >= 0, strictly increasing.
    method : str
        A key of `METHODS`: "euler" or "rk4" with the fixed step `dt`, or one of
        scipy's adaptive "RK45", "DOP853", "Radau", "LSODA".
    dt : float
        Largest step of a fixed-step method, > 0.  The time between two outputs is
        divided into equal steps.
    rtol, atol : float, optional
        Tolerances of an adaptive method; 1e-10 and 1e-12 if left out.

    Returns
    -------
    Solution

    Raises
    ------
    ValueError
        If an argument breaks its rule, or the field returns another shape.
    ArithmeticError
        If the solver fails or the solution is not finite.
    """
    x0, t = checks.tokens("x0", x0), checks.times(t).copy()
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    chosen = METHODS[method]
    if not callable(field):
        raise ValueError(f"field must be a function of the tokens, got {field!r}")
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
        x = _adaptive(counted, x0, t, method, **options)
    else:
        if dt is None:
            raise ValueError(f"dt must be given for the fixed-step method {method!r}, got None")
        if rtol is not None or atol is not None:
            raise ValueError(f"rtol and atol must be left out for {method!r}, got {rtol!r} and {atol!r}")
        options = {"dt": checks.positive("dt", dt)}
        if t[-1] / MOST_STEPS > options["dt"]:
            raise ValueError(f"dt must be at least t / {MOST_STEPS:g} = {t[-1] / MOST_STEPS:g}, got {dt!r}")
        x = _fixed(counted, x0, t, _STEPS[method], **options)
    if t[0] == 0:
        x[0] = x0  # not a copy that interpolation has rounded
    if not np.all(np.isfinite(x)):
        raise ArithmeticError(f"{method} left the finite numbers; the field or the step is too large")
    return Solution(t=t, x=x, method=chosen, evaluations=counted.calls, options=options)


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


def _fixed(f: Field, x0, t, step, dt: float) -> np.ndarray:
    x = np.empty((len(t), *x0.shape))
    y, now = x0, 0.0
    for i, target in enumerate(t):
        steps = math.ceil((target - now) / dt * (1 - 1e-12))  # 0.3 / 0.1 is 3 steps, not 4
        for _ in range(steps):
            y = step(f, y, (target - now) / steps)
            y = y / np.linalg.norm(y, axis=-1, keepdims=True)
        x[i] = y
        now = target
    return x


def _adaptive(f: Field, x0, t, method: str, rtol: float, atol: float) -> np.ndarray:
    if t[-1] == 0:
        return x0[None].copy()
    shape = x0.shape
    try:
        solved = solve_ivp(
            lambda _, y: f(y.reshape(shape)).ravel(),
            (0.0, t[-1]),
            x0.ravel(),
            method=method,
            t_eval=t,
            rtol=rtol,
            atol=atol,
        )
    except ValueError as error:  # so Radau answers NaN
        raise ArithmeticError(f"{method} stopped before t = {t[-1]:g}: {error}") from error
    if not solved.success:
        raise ArithmeticError(f"{method} stopped before t = {t[len(solved.t)]:g}: {solved.message}")
    x = solved.y.T.reshape(len(t), *shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _tolerance(name: str, value) -> float:
    value = checks.positive(name, value)
    if not 3e-14 <= value < 1:
        raise ValueError(f"{name} must be in [3e-14, 1), got {value!r}")
    return value
