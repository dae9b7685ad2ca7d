"""Our side of every row: one small function for each kind of work.

A work that csa_utils does not do raises NotImplementedError; its rows are then shown as
"not measured".  To measure another engine, change the functions here and nothing else.
"""

from __future__ import annotations

import numpy as np

from csa_utils import attention, circle
from csa_utils.integrators import METHODS
from csa_utils.integrators.adaptive import STEP, State
from csa_utils.integrators.problem import event_arrays
from csa_utils.simulate import simulate

__all__ = ["RUN", "attention_field", "circle_field", "collapse", "implicit_step", "run"]

#: How a whole run is made; written into the record.
RUN = {"method": "implicit", "tol": 3e-4}


def attention_field(x: np.ndarray, Q: np.ndarray, K: np.ndarray, V: np.ndarray, beta: float) -> np.ndarray:
    """Velocity of every token under the causal mask."""
    return attention.field(x, Q=Q, K=K, V=V, beta=beta)


def circle_field(phi: np.ndarray, beta: float, method: str) -> np.ndarray:
    """Velocity of every angle, Q = K = V = I, by the method "dense" or "fourier"."""
    return circle.field(phi, beta=beta, method=method)


def run(x0: np.ndarray, t: float, beta: float) -> np.ndarray:
    """Tokens at time `t`, Q = K = V = I."""
    return simulate(x0, [t], beta=beta, **RUN).x[-1]


def implicit_step(x: np.ndarray, beta: float, dt: float) -> np.ndarray:
    """Tokens on the circle after one implicit step of length `dt`, Q = K = V = I.

    Everything is included: parameters and storage, the linearisation, five more velocities,
    six solves.  The tolerance is so large that the step is accepted.
    """
    problem = attention.Dynamics(x.shape[-1], beta=beta).problems(len(x))[0]
    state = State(METHODS["implicit"].stepper, problem, x, np.array([dt]), event_arrays((), len(x)), 1e9)
    state.state[STEP] = dt
    state.advance(1)
    return state.x


def collapse(x0: np.ndarray, t: float, beta: float) -> np.ndarray:
    """Tokens on the circle at a time `t` by which all have met the first one, Q = K = V = I."""
    return simulate(x0, [t], beta=beta, **RUN).x[-1]
