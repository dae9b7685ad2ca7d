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

*Frozen tokens* (Theorem 5.2 of the paper) never move and are seen by all others, the j-th
of them a_j times: they come before the tokens in every sum, with the weight multiplied by
a_j.

Weights, outputs and Jacobians are plain NumPy, as they are n x n or larger anyway.  The
field is compiled (:mod:`csa_utils.kernels`) and forms no such matrix.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property

import numpy as np

from . import checks, kernels
from .integrators import Problem

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
    frozen : array_like, shape (m, d), optional
        Frozen tokens, unit vectors, the same in every run.
    frozen_weights : array_like, shape (m,), optional
        How often each of them counts, > 0; once if left out.

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
    frozen: np.ndarray | None = None
    frozen_weights: np.ndarray | None = None
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
        self._check_frozen()
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

    def _check_frozen(self) -> None:
        """Frozen tokens (m, d), m = 0 if there are none, and their weights (m,)."""
        weights = self.frozen_weights
        if self.frozen is None:
            if weights is not None:
                raise ValueError(f"frozen_weights must be left out without frozen tokens, got {weights!r}")
            frozen, weights = np.empty((0, self.d)), np.empty(0)
        else:
            frozen = checks.tokens("frozen", self.frozen).copy()
            if frozen.ndim != 2 or frozen.shape[1] != self.d:
                raise ValueError(f"frozen must have shape (m, {self.d}), got {frozen.shape}")
            weights = np.ones(len(frozen)) if weights is None else checks.array("frozen_weights", weights).copy()
            if weights.shape != (len(frozen),):
                raise ValueError(f"frozen_weights must have shape ({len(frozen)},), got {weights.shape}")
            if np.any(weights <= 0):
                raise ValueError(f"frozen_weights must be > 0, got {weights.min()}")
        frozen.flags.writeable = weights.flags.writeable = False
        object.__setattr__(self, "frozen", frozen)
        object.__setattr__(self, "frozen_weights", weights)

    def keys(self, x: np.ndarray) -> np.ndarray:
        """Frozen tokens followed by the tokens x: shape (..., m + n, d)."""
        if not len(self.frozen):
            return x
        return np.concatenate([np.broadcast_to(self.frozen, (*x.shape[:-2], *self.frozen.shape)), x], axis=-2)

    def _mass(self, n: int) -> np.ndarray | None:
        return np.concatenate([self.frozen_weights, np.ones(n)]) if len(self.frozen) else None

    def weights(self, x: np.ndarray) -> np.ndarray:
        """Attention weights (..., n, m + n) of unchecked tokens; rows sum to one."""
        n, m = x.shape[-2], len(self.frozen)
        query, key = _apply(self.Q, x), _apply(self.K, self.keys(x))
        logits = self.beta[..., None, None] * (query @ np.swapaxes(key, -1, -2))
        if self.causal:
            logits = np.where(np.tri(n, m + n, m, dtype=bool), logits, -np.inf)
        # For general Q and K the largest logit of a row is not on the diagonal.
        w = np.exp(logits - logits.max(axis=-1, keepdims=True))
        if m:
            w = w * self._mass(n)
        return w / w.sum(axis=-1, keepdims=True)

    def output(self, x: np.ndarray) -> np.ndarray:
        """Weighted values sum_j w_kj V x_j, shape (..., n, d), of unchecked tokens."""
        return self.weights(x) @ _apply(self.V, self.keys(x))

    @cached_property
    def shift(self) -> np.ndarray:
        """Leading real part of each V: what a token's own term may be rid of."""
        return np.linalg.eigvals(self.V).real.max(axis=-1)

    @cached_property
    def _scores(self) -> np.ndarray:
        """beta Q^T K, by which token k scores token j: x_k^T (beta Q^T K) x_j."""
        return self.beta[..., None, None] * (np.swapaxes(self.Q, -1, -2) @ self.K)

    def field(self, x: np.ndarray) -> np.ndarray:
        """Tangent velocity of each of the unchecked tokens, shape (..., n, d)."""
        n, m, d = x.shape[-2], len(self.frozen), self.d
        batch = np.broadcast_shapes(x.shape[:-2], self.batch)
        stack = np.broadcast_to(self.keys(x), (*batch, m + n, d)).reshape(-1, m + n, d)

        def matrices(a, trailing):
            shared = a.ndim == trailing or a.shape[: a.ndim - trailing].count(1) == a.ndim - trailing
            shape = a.shape[a.ndim - trailing :]
            return a.reshape(1, *shape) if shared else np.broadcast_to(a, (*batch, *shape)).reshape(-1, *shape)

        B, V, shift = matrices(self._scores, 2), matrices(self.V, 2), matrices(self.shift, 0)
        if not len(B) == len(V) == len(shift):
            most = max(len(B), len(V))
            B, V, shift = (np.broadcast_to(a, (most, *a.shape[1:])) for a in (B, V, shift))
        v = kernels.fields(stack, B, V, shift, causal=bool(self.causal), frozen=m, mass=self._mass(n))
        return v[:, m:].reshape(*batch, n, d)

    def problems(self, n: int, counts: np.ndarray | None = None) -> list[Problem]:
        """What the compiled solvers take: one problem a run, in the order of the batch axes.

        Tokens of a problem are the frozen ones followed by the n others.  `counts` (n, n)
        says how often token k counts token j, without frozen tokens.
        """
        m, d = len(self.frozen), self.d
        B = np.broadcast_to(self._scores, (*self.batch, d, d)).reshape(-1, d, d)
        V = np.broadcast_to(self.V, (*self.batch, d, d)).reshape(-1, d, d)
        shift = np.broadcast_to(self.shift, self.batch).reshape(-1)
        found = []
        for B_i, V_i, shift_i in zip(B, V, shift, strict=True):
            system = kernels.make_system(
                B_i,
                V_i,
                causal=bool(self.causal),
                frozen=m,
                mass=self._mass(n) if counts is None else counts,
                shift=float(shift_i),
            )
            rate = np.linalg.norm(V_i, 2) * (1 + np.linalg.norm(B_i, 2))
            velocity, linearise = kernels.velocity, kernels.linearise
            if len(B) == 1 and (m + n) ** 2 >= kernels.PARALLEL_FROM_STEP:
                velocity, linearise = kernels.velocity_parallel, kernels.linearise_parallel
            triangular = {"linearise": linearise, "solve": kernels.solve} if self.causal else {}
            work = functools.partial(kernels.make_work, d=d)
            found.append(Problem(m + n, d, system, velocity, rate, work=work, **triangular))
        return found

    def jacobian(self, x: np.ndarray) -> np.ndarray:
        """Derivative of :meth:`field` at unchecked tokens; see :func:`jacobian`."""
        n, d = x.shape[-2:]
        m = len(self.frozen)
        keys = self.keys(x)
        w = self.weights(x)
        values = _apply(self.V, keys)
        a = w @ values
        beta = self.beta[..., None, None]
        # d logit_kj / d x_j = beta K^T Q x_k and d logit_kj / d x_k = beta Q^T K x_j.
        by_key = beta * _apply(np.swapaxes(self.K, -1, -2) @ self.Q, x)
        by_query = beta * _apply(np.swapaxes(self.Q, -1, -2) @ self.K, keys)
        spread = values[..., None, :, :] - a[..., :, None, :]  # (..., k, j, d)
        seen = w[..., m:]  # frozen tokens are not differentiated by
        V = np.broadcast_to(self.V[..., None, None, :, :], (*seen.shape, d, d))
        # Through x_j as key and value: w_kj (V + (V x_j - a_k) (beta K^T Q x_k)^T).
        da = seen[..., None, None] * (V + spread[..., m:, :, None] * by_key[..., :, None, None, :])
        # Through x_k as query, which adds to the diagonal block only.
        own = np.einsum("...kj,...kja,...jb->...kab", w, spread, np.broadcast_to(by_query, keys.shape))
        k = np.arange(n)
        da[..., k, k, :, :] += own
        # P_k = I - x_k x_k^T acts from the left ...
        xk = x[..., :, None, :]
        J = da - xk[..., :, None] * np.einsum("...ka,...kjab->...kjb", x, da)[..., None, :]
        # ... and the x_k inside the projection is differentiated too.
        inner = np.sum(x * a, axis=-1)[..., None, None] * np.eye(d)
        J[..., k, k, :, :] -= x[..., :, None] * a[..., None, :] + inner
        return np.moveaxis(J, -3, -2)  # (..., k, j, a, b) -> (..., k, a, j, b)


def weights(x, *, Q=None, K=None, beta=1.0, causal: bool = True, frozen=None, frozen_weights=None) -> np.ndarray:
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
    frozen, frozen_weights : array_like, optional
        As for :func:`field`.

    Returns
    -------
    ndarray, shape (..., n, m + n)
        Non-negative; every row sums to one.  The m frozen tokens come first.

    Raises
    ------
    ValueError
        If an argument breaks its rule, or beta |Q| |K| is 1e300 or more.
    """
    dynamics, x = _open(x, Q=Q, K=K, beta=beta, causal=causal, frozen=frozen, frozen_weights=frozen_weights)
    return dynamics.weights(x)


def output(x, *, Q=None, K=None, V=None, beta=1.0, causal: bool = True, frozen=None, frozen_weights=None) -> np.ndarray:
    """Attention output sum_j w_kj V x_j, before the projection to the tangent space.

    Parameters and errors are those of :func:`field`.

    Returns
    -------
    ndarray, shape (..., n, d)
    """
    dynamics, x = _open(x, Q=Q, K=K, V=V, beta=beta, causal=causal, frozen=frozen, frozen_weights=frozen_weights)
    return dynamics.output(x)


def field(x, *, Q=None, K=None, V=None, beta=1.0, causal: bool = True, frozen=None, frozen_weights=None) -> np.ndarray:
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
    frozen, frozen_weights : array_like, shapes (m, d) and (m,), optional
        Tokens that never move and are seen by all, and how often each counts.

    Returns
    -------
    ndarray, shape (..., n, d)
        Tangent to the sphere: <x_k, field_k> = 0.

    Raises
    ------
    ValueError
        If an argument breaks its rule, or beta |Q| |K| is 1e300 or more.
    """
    dynamics, x = _open(x, Q=Q, K=K, V=V, beta=beta, causal=causal, frozen=frozen, frozen_weights=frozen_weights)
    return dynamics.field(x)


def jacobian(
    x, *, Q=None, K=None, V=None, beta=1.0, causal: bool = True, frozen=None, frozen_weights=None
) -> np.ndarray:
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
    dynamics, x = _open(x, Q=Q, K=K, V=V, beta=beta, causal=causal, frozen=frozen, frozen_weights=frozen_weights)
    return dynamics.jacobian(np.broadcast_to(x, (*np.broadcast_shapes(x.shape[:-2], dynamics.batch), *x.shape[-2:])))


def _open(x, **parameters) -> tuple[Dynamics, np.ndarray]:
    """The public door: checked parameters and checked tokens."""
    x = checks.tokens("x", x)
    dynamics = Dynamics(x.shape[-1], **parameters)
    return dynamics, dynamics.check(x)


def _apply(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The matrix applied to every token: rows are tokens, hence the transpose."""
    return x @ np.swapaxes(matrix, -1, -2)
