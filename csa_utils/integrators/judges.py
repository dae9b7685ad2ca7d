"""scipy's adaptive solvers: slower, and independent judges of our own.

RK45 (order 5), DOP853 (order 8), Radau (order 5) and LSODA (its order varies).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp

__all__ = ["ORDERS", "run"]

ORDERS = {"RK45": 5, "DOP853": 8, "Radau": 5, "LSODA": None}


def run(f: Callable, x0: np.ndarray, t: np.ndarray, method: str, rtol: float, atol: float) -> np.ndarray:
    """Tokens at the times t.

    Parameters
    ----------
    f : function
        The field, continued to all of space.
    x0 : ndarray, shape (..., n, d)
    t : ndarray, shape (T,)
    method : str
        A key of `ORDERS`.
    rtol, atol : float

    Raises
    ------
    ArithmeticError
        If the solver stops before the last time.
    """
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
