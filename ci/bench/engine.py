"""Our side of every row: one small function for each kind of work.

A work that csa_utils does not do yet raises NotImplementedError; its rows are then
shown as "not measured".  To plug in a new engine, change the function here and
nothing else.
"""

from __future__ import annotations

import numpy as np

from csa_utils import attention
from csa_utils.simulate import simulate

__all__ = [
    "LARGEST_N",
    "RUN",
    "attention_field",
    "circle_field",
    "collapse",
    "implicit_step",
    "run",
]

#: How a whole run is made; written into the record.
RUN = {"method": "auto", "rtol": 1e-6, "atol": 1e-8}

#: Beyond these the solvers and dense arrays of today take too much time or memory.
LARGEST_N = 4000
LARGEST_T = 1e4


def attention_field(x: np.ndarray, Q: np.ndarray, K: np.ndarray, V: np.ndarray, beta: float) -> np.ndarray:
    """Velocity of every token under the causal mask."""
    if x.shape[-2] > LARGEST_N:
        raise NotImplementedError(f"the field needs dense arrays beyond n = {LARGEST_N}")
    return attention.field(x, Q=Q, K=K, V=V, beta=beta)


def circle_field(phi: np.ndarray, beta: float, method: str) -> np.ndarray:
    """Velocity of every angle, Q = K = V = I, by the method "dense" or "fourier"."""
    try:
        from csa_utils import circle
    except ImportError as error:
        raise NotImplementedError("csa_utils has no field on the circle yet") from error
    return circle.field(phi, beta, method=method)


def run(x0: np.ndarray, t: float, beta: float) -> np.ndarray:
    """Tokens at time `t`, Q = K = V = I."""
    if t > LARGEST_T:
        raise NotImplementedError(f"no solver for times beyond {LARGEST_T:g} yet")
    return simulate(x0, [t], beta=beta, **RUN).x[-1]


def implicit_step(x: np.ndarray, beta: float, dt: float) -> np.ndarray:
    """Tokens on the circle after one implicit step of length `dt`, Q = K = V = I."""
    raise NotImplementedError("csa_utils has no implicit solver yet")


def collapse(x0: np.ndarray, t: float, beta: float) -> np.ndarray:
    """Tokens on the circle at a time `t` by which all have met the first one, Q = K = V = I."""
    raise NotImplementedError("csa_utils has no implicit solver yet")
