"""Fixed steps: Euler's method (order 1) and the classical Runge-Kutta method (order 4)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

__all__ = ["ORDERS", "run"]

Field = Callable[[np.ndarray], np.ndarray]


def _euler(f: Field, y: np.ndarray, h: float) -> np.ndarray:
    return y + h * f(y)


def _rk4(f: Field, y: np.ndarray, h: float) -> np.ndarray:
    a = f(y)
    b = f(y + h / 2 * a)
    c = f(y + h / 2 * b)
    return y + h / 6 * (a + 2 * b + 2 * c + f(y + h * c))


_STEPS = {"euler": _euler, "rk4": _rk4}
ORDERS = {"euler": 1, "rk4": 4}


def run(f: Field, x0: np.ndarray, t: np.ndarray, method: str, dt: float) -> np.ndarray:
    """Tokens at the times t, with equal steps of at most dt between two of them.

    Parameters
    ----------
    f : function
        The field, continued to all of space.
    x0 : ndarray, shape (..., n, d)
    t : ndarray, shape (T,)
    method : str
        A key of `ORDERS`.
    dt : float
    """
    step = _STEPS[method]
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
