r"""Attention as a dynamical system: weights, the field of (CSA) and (SA), its Jacobian.

With query, key and value matrices Q, K, V and inverse temperature beta, token k obeys

.. math::

    \dot x_k = P_{x_k} \sum_{j \le k} w_{kj} V x_j, \qquad
    w_{kj} = \frac{e^{\beta \langle Q x_k, K x_j \rangle}}
                  {\sum_{i \le k} e^{\beta \langle Q x_k, K x_i \rangle}}

under the causal mask (CSA), and the same with sums over all tokens without it (SA).
Here :math:`P_x y = y - \langle x, y \rangle x`.  The self term j = k is included.
(Section 1 of the paper; (SA) is from Geshkovski et al., arXiv 2312.10794.)

Tokens are rows, so the values of ``x`` are ``x @ V.T``.  Batch axes lead and
broadcast: ``x`` may be (..., n, d), each matrix (..., d, d), ``beta`` (...).
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as dataclass_field

import numpy as np

from . import checks

__all__ = ["Dynamics", "field", "jacobian", "output", "weights"]


@dataclass(frozen=True, eq=False)
class Dynamics:
    """The parameters of one attention system, checked once.

    Parameters
    ----------
    d : int
        Dimension of the tokens.
    Q, K, V : array_like, shape (..., d, d), optional
        Query, key and value matrices; the identity if left out.
    beta : float or array_like, shape (...)
        Inverse temperature, finite and >= 0.
    causal : bool
        True for (CSA), False for (SA).

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """

    d: int
    Q: np.ndarray | None = None
    K: np.ndarray | None = None
    V: np.ndarray | None = None
    beta: float | np.ndarray = 1.0
    causal: bool = True
    batch: tuple[int, ...] = dataclass_field(init=False, default=())

    def __post_init__(self) -> None:
        d = checks.whole("d", self.d)
        for name in ("Q", "K", "V"):
            value = getattr(self, name)
            # A copy, so that changing the caller's array later changes nothing here.
            value = np.eye(d) if value is None else checks.matrix(name, value, d).copy()
            value.flags.writeable = False
            object.__setattr__(self, name, value)
        object.__setattr__(self, "beta", checks.inverse_temperature(self.beta).copy())
        if not isinstance(self.causal, (bool, np.bool_)):
            raise ValueError(f"causal must be True or False, got {self.causal!r}")
        batch: tuple[int, ...] = ()
        for name in ("Q", "K", "V", "beta"):
            value = getattr(self, name)
            shape = value.shape if name == "beta" else value.shape[:-2]
            batch = checks.broadcast(("the other parameters", batch), (name, shape))
        object.__setattr__(self, "batch", batch)
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.all(np.linalg.norm(self.V, axis=(-2, -1)) < 1e300):
                raise ValueError("V must have a norm below 1e300 so that no velocity overflows, got a larger one")
            largest = self.beta * np.linalg.norm(self.Q, axis=(-2, -1)) * np.linalg.norm(self.K, axis=(-2, -1))
        if not np.all(largest < 1e300):
            raise ValueError(f"beta * |Q| * |K| must be below 1e300 so that no logit overflows, got {np.max(largest)}")

    def check(self, x, name: str = "x") -> np.ndarray:
        """Tokens that fit these parameters, or a ValueError."""
        x = checks.tokens(name, x)
        if x.shape[-1] != self.d:
            raise ValueError(f"{name} must have tokens in dimension {self.d}, got shape {x.shape}")
        checks.broadcast((name, x.shape[:-2]), ("the parameters", self.batch))
        return x

    def weights(self, x: np.ndarray) -> np.ndarray:
        """Attention weights (..., n, n) of unchecked tokens; rows sum to one."""
        query, key = _apply(self.Q, x), _apply(self.K, x)
        logits = self.beta[..., None, None] * (query @ np.swapaxes(key, -1, -2))
        if self.causal:
            logits = np.where(np.tri(x.shape[-2], dtype=bool), logits, -np.inf)
        # For general Q and K the largest logit of a row is not on the diagonal.
        w = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return w / w.sum(axis=-1, keepdims=True)

    def output(self, x: np.ndarray) -> np.ndarray:
        """Weighted values sum_j w_kj V x_j, shape (..., n, d), of unchecked tokens."""
        return self.weights(x) @ _apply(self.V, x)

    def field(self, x: np.ndarray) -> np.ndarray:
        """Tangent velocity of each of the unchecked tokens, shape (..., n, d)."""
        a = self.output(x)
        return a - np.sum(a * x, axis=-1, keepdims=True) * x

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        """Derivative of :meth:`field` at unchecked tokens; see :func:`jacobian`."""
        n, d = x.shape[-2:]
        w = self.weights(x)
        values = _apply(self.V, x)
        a = w @ values
        beta = self.beta[..., None, None]
        # d logit_kj / d x_j = beta K^T Q x_k and d logit_kj / d x_k = beta Q^T K x_j.
        by_key = beta * _apply(np.swapaxes(self.K, -1, -2) @ self.Q, x)
        by_query = beta * _apply(np.swapaxes(self.Q, -1, -2) @ self.K, x)
        spread = values[..., None, :, :] - a[..., :, None, :]  # (..., k, j, d)
        V = np.broadcast_to(self.V[..., None, None, :, :], (*w.shape, d, d))
        # Through x_j as key and value: w_kj (V + (V x_j - a_k) (beta K^T Q x_k)^T).
        da = w[..., None, None] * (V + spread[..., :, None] * by_key[..., :, None, None, :])
        # Through x_k as query, which adds to the diagonal block only.
        own = np.einsum("...kj,...kja,...jb->...kab", w, spread, np.broadcast_to(by_query, x.shape))
        k = np.arange(n)
        da[..., k, k, :, :] += own
        # P_k = I - x_k x_k^T acts from the left ...
        xk = x[..., :, None, :]
        J = da - xk[..., :, None] * np.einsum("...ka,...kjab->...kjb", x, da)[..., None, :]
        # ... and the x_k inside the projection is differentiated too.
        inner = np.sum(x * a, axis=-1)[..., None, None] * np.eye(d)
        J[..., k, k, :, :] -= x[..., :, None] * a[..., None, :] + inner
        return np.moveaxis(J, -3, -2)  # (..., k, j, a, b) -> (..., k, a, j, b)


def weights(x, *, Q=None, K=None, beta=1.0, causal: bool = True) -> np.ndarray:
    """Attention weights w_kj.

    Parameters
    ----------
    x : array_like, shape (..., n, d)
        Tokens, unit vectors in the rows.
    Q, K : array_like, shape (..., d, d), optional
        Query and key matrices; the identity if left out.
    beta : float or array_like
        Inverse temperature, finite and >= 0.
    causal : bool
        With the mask, w_kj = 0 for j > k.

    Returns
    -------
    ndarray, shape (..., n, n)
        Non-negative; every row sums to one.

    Raises
    ------
    ValueError
        If an argument breaks its rule, or beta |Q| |K| is 1e300 or more.
    """
    dynamics, x = _open(x, Q=Q, K=K, beta=beta, causal=causal)
    return dynamics.weights(x)


def output(x, *, Q=None, K=None, V=None, beta=1.0, causal: bool = True) -> np.ndarray:
    """Attention output sum_j w_kj V x_j, before the projection to the tangent space.

    Parameters and errors are those of :func:`field`.

    Returns
    -------
    ndarray, shape (..., n, d)
    """
    dynamics, x = _open(x, Q=Q, K=K, V=V, beta=beta, causal=causal)
    return dynamics.output(x)


def field(x, *, Q=None, K=None, V=None, beta=1.0, causal: bool = True) -> np.ndarray:
    """Velocity of every token under (CSA), or (SA) with ``causal=False``.

    Parameters
    ----------
    x : array_like, shape (..., n, d)
        Tokens, unit vectors in the rows.
    Q, K, V : array_like, shape (..., d, d), optional
        Query, key and value matrices; the identity if left out.
    beta : float or array_like
        Inverse temperature, finite and >= 0.
    causal : bool
        With the mask, token k sees tokens 1..k only.

    Returns
    -------
    ndarray, shape (..., n, d)
        Tangent to the sphere: <x_k, field_k> = 0.

    Raises
    ------
    ValueError
        If an argument breaks its rule, or beta |Q| |K| is 1e300 or more.
    """
    dynamics, x = _open(x, Q=Q, K=K, V=V, beta=beta, causal=causal)
    return dynamics.field(x)


def jacobian(x, *, Q=None, K=None, V=None, beta=1.0, causal: bool = True) -> np.ndarray:
    """Derivative of the field with respect to all token coordinates.

    The field's formula is differentiated as a function on R^{n x d}; restrict both
    sides to tangent vectors to get the derivative on the sphere.

    Parameters and errors are those of :func:`field`.

    Returns
    -------
    ndarray, shape (..., n, d, n, d)
        Entry [k, a, j, b] is d field_k[a] / d x_j[b].  Under the mask the blocks
        with j > k vanish: the matrix is block lower triangular.
    """
    dynamics, x = _open(x, Q=Q, K=K, V=V, beta=beta, causal=causal)
    return dynamics.jacobian(np.broadcast_to(x, (*np.broadcast_shapes(x.shape[:-2], dynamics.batch), *x.shape[-2:])))


def _open(x, **parameters) -> tuple[Dynamics, np.ndarray]:
    """The public door: checked parameters and checked tokens."""
    x = checks.tokens("x", x)
    dynamics = Dynamics(x.shape[-1], **parameters)
    return dynamics, dynamics.check(x)


def _apply(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The matrix applied to every token: rows are tokens, hence the transpose."""
    return x @ np.swapaxes(matrix, -1, -2)
