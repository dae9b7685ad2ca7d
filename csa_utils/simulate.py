"""The front door: parameters in, trajectory out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import checks
from .attention import Dynamics
from .integrators import METHODS, integrate

__all__ = ["Trajectory", "simulate"]


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
        Its step `dt`, or its tolerances `rtol` and `atol`.
    evaluations : int
        How often the field was evaluated.
    """

    t: np.ndarray
    x: np.ndarray
    dynamics: Dynamics
    method: str
    order: int | None
    options: dict
    evaluations: int

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
            f"{len(self.t)} times to t={self.t[-1]:g}; {self.method} with {options}, "
            f"{self.evaluations} field evaluations)"
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
    method: str = "auto",
    dt: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Trajectory:
    """Run causal attention dynamics (CSA), or full attention (SA) without the mask.

    Parameters
    ----------
    x0 : array_like, shape (..., n, d)
        Tokens at time 0: unit vectors in the rows, any leading batch axes.
    t : array_like, shape (T,)
        Times at which the tokens are wanted: >= 0, strictly increasing.
    Q, K, V : array_like, shape (..., d, d), optional
        Query, key and value matrices; the identity if left out.  Leading axes
        broadcast against those of `x0`.
    beta : float or array_like
        Inverse temperature, finite and >= 0; may have batch axes as well.
    causal : bool
        With the mask (CSA) or without it (SA).
    method : str
        "auto" takes the best available solver; otherwise a key of
        `csa_utils.integrators.METHODS`.
    dt : float, optional
        Step of a fixed-step method.
    rtol, atol : float, optional
        Tolerances of an adaptive method; 1e-10 and 1e-12 if left out.

    Returns
    -------
    Trajectory

    Raises
    ------
    ValueError
        If an argument breaks its rule; the message names it.
    ArithmeticError
        If the solver fails.

    Examples
    --------
    >>> import numpy as np
    >>> from csa_utils import sphere
    >>> x0 = sphere.uniform(8, 2, np.random.default_rng(0))
    >>> simulate(x0, [0.0, 1.0], beta=4.0).x.shape
    (2, 8, 2)
    """
    x0 = checks.tokens("x0", x0)
    dynamics = Dynamics(x0.shape[-1], Q=Q, K=K, V=V, beta=beta, causal=causal)
    x0 = dynamics.check(x0, "x0")
    # Parameters with batch axes of their own run on as many copies of the tokens.
    x0 = np.broadcast_to(x0, (*np.broadcast_shapes(x0.shape[:-2], dynamics.batch), *x0.shape[-2:]))
    if method == "auto":
        method = "DOP853" if dt is None else "rk4"
    elif not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method must be 'auto' or one of {', '.join(METHODS)}, got {method!r}")
    solution = integrate(dynamics.field, x0, t, method, dt=dt, rtol=rtol, atol=atol)
    return Trajectory(
        t=solution.t,
        x=solution.x,
        dynamics=dynamics,
        method=method,
        order=solution.method.order,
        options=solution.options,
        evaluations=solution.evaluations,
    )
