"""Closed forms that simulations are judged by."""

from __future__ import annotations

import numpy as np
from scipy.integrate import quad
from scipy.linalg import schur
from scipy.optimize import brentq

from . import checks
from .sphere import normalise

__all__ = ["first_token", "two_tokens"]


def first_token(x0, V, t) -> np.ndarray:
    """The first token at times t: e^{tV} x0 / |e^{tV} x0|.

    It solves x' = P_x V x, which the first token of (CSA) obeys for every Q, K and
    beta, whatever the other tokens do (Lemma 3.1 of the paper).

    The exponential is taken of the Schur form of V, from which the largest real part
    is subtracted first; that changes lengths only, and what grows after it is at most
    a power of t.  With Jordan blocks of size k on top the error is at most about
    1e-15 (t |V|)^k, no more than what rounding V does to the flow.  Starts in the
    exceptional subspace underflow at large t and are then carried along in pieces,
    with a normalisation after each.

    Parameters
    ----------
    x0 : array_like, shape (..., d)
        Unit vectors.
    V : array_like, shape (..., d, d)
        Value matrices; leading axes broadcast against those of `x0`.
    t : array_like, shape (T,)
        Times: >= 0, strictly increasing.

    Returns
    -------
    ndarray, shape (T, ..., d)

    Raises
    ------
    ValueError
        If an argument breaks its rule, or t |V| is above 1e12, where rounding in V
        alone decides the result.
    """
    x0, V, t = checks.vectors("x0", x0), checks.matrix("V", V), checks.times(t)
    if V.shape[-1] != x0.shape[-1]:
        raise ValueError(f"V must be {x0.shape[-1]} x {x0.shape[-1]} to act on x0, got shape {V.shape}")
    batch = checks.broadcast(("x0", x0.shape[:-1]), ("V", V.shape[:-2]))
    size = np.linalg.norm(V, axis=(-2, -1)).max(initial=0.0)
    if t[-1] * size > 1e12:
        raise ValueError(f"t must satisfy t |V| <= 1e12, got t = {t[-1]:g} with |V| = {size:g}")
    d = x0.shape[-1]
    x = np.empty((len(t), *batch, d))
    known = {}  # starts that share V share its exponentials
    for i in np.ndindex(batch):
        own = i[len(batch) - V.ndim + 2 :]
        own = tuple(k if size > 1 else 0 for k, size in zip(own, V.shape[:-2], strict=True))
        if own not in known:
            T, Z = schur(V[own], output="complex")
            T = T - np.diag(T).real.max() * np.eye(d)
            known[own] = T, Z, _exponentials(T, t)
        T, Z, E = known[own]
        start = Z.conj().T @ np.broadcast_to(x0, (*batch, d))[i]
        y = E @ start
        for j in np.flatnonzero(np.abs(y).max(axis=-1) < 1e-200):
            y[j] = _in_pieces(T, start, t[j])
        x[(slice(None), *i)] = normalise((y @ Z.T).real)
    return x


def _exponentials(T, t) -> np.ndarray:
    """e^{tT} for an upper triangular T whose diagonal has no positive real part.

    Taylor's series after scaling to norm 1, then squaring.  Squares of triangular
    matrices keep the triangle exactly, so rounding cannot feed a Jordan block from
    below; a general-purpose expm of V itself loses the block from t = 1e4 on.
    """
    squarings = np.ceil(np.log2(np.maximum(t * np.linalg.norm(T), 1.0))).astype(int)
    A = T * np.ldexp(t, -squarings)[:, None, None]
    E = np.broadcast_to(np.eye(len(T), dtype=complex), A.shape)
    for k in range(18, 0, -1):  # 1 / 19! is below 1e-17
        E = np.eye(len(T)) + A @ E / k
    for n in range(squarings.max()):
        again = squarings > n
        E[again] = E[again] @ E[again]
    return E


def _in_pieces(T, y, time: float) -> np.ndarray:
    """e^{time T} y up to its length, for results that would underflow."""
    pieces = int(np.ceil(time * np.linalg.norm(T) / 300))
    if pieces > 10**7:
        raise ValueError(f"t must be below {300e7 / np.linalg.norm(T):g} for a start in the exceptional subspace")
    step = _exponentials(T, np.array([time / pieces]))[0]
    for _ in range(pieces):
        y = step @ y
        y = y / np.linalg.norm(y)
    return y


def two_tokens(x0, t, *, Q=None, K=None, beta=1.0) -> np.ndarray:
    """Two tokens under (CSA) with V = I, for any Q, K and beta, by quadrature.

    The first token rests.  The second moves on the great circle through both: with
    theta its distance from the first and u = log tan(theta/2), the equation is
    u' = -1 / (1 + e^{beta(<Qx_2, Kx_2> - <Qx_2, Kx_1>)}), so time is an integral of a
    smooth function of u.

    Parameters
    ----------
    x0 : array_like, shape (..., 2, d)
        Two unit tokens.
    t : array_like, shape (T,)
        Times: >= 0, strictly increasing.
    Q, K : array_like, shape (d, d), optional
        Query and key matrices; the identity if left out.
    beta : float
        Inverse temperature, finite and >= 0, with beta |Q| |K| <= 300.

    Returns
    -------
    ndarray, shape (T, ..., 2, d)
        Accurate to about 1e-12.

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    x0, t = checks.tokens("x0", x0), checks.times(t)
    if x0.shape[-2] != 2:
        raise ValueError(f"x0 must hold exactly two tokens, shape (..., 2, d), got shape {x0.shape}")
    d = x0.shape[-1]
    Q = np.eye(d) if Q is None else checks.matrix("Q", Q, d)
    K = np.eye(d) if K is None else checks.matrix("K", K, d)
    beta = checks.inverse_temperature(beta)
    if beta.ndim or Q.ndim > 2 or K.ndim > 2:
        raise ValueError(f"beta, Q and K must have no batch axes here, got shapes {beta.shape}, {Q.shape}, {K.shape}")
    strength = float(beta) * np.linalg.norm(Q, 2) * np.linalg.norm(K, 2)
    if strength > 300:
        raise ValueError(f"beta |Q| |K| must be <= 300 so that times stay finite, got {strength:g}")
    x = np.empty((len(t), *x0.shape))
    for i in np.ndindex(x0.shape[:-2]):
        x[(slice(None), *i)] = _second_token(*x0[i], t, float(beta) * Q.T @ K)
    return x


def _second_token(a, b, t, B) -> np.ndarray:
    """Tokens a (fixed) and b at the times t, shape (T, 2, d); B = beta Q^T K."""
    chord, opposite = np.linalg.norm(b - a), np.linalg.norm(b + a)
    near = b - a if chord < opposite else b + a  # P_a b without cancellation
    side = near - np.dot(a, near) * a
    if not side.any():  # equal tokens stay equal, opposite ones rest
        return np.broadcast_to(np.stack([a, b]), (len(t), 2, len(a))).copy()
    side = side / np.linalg.norm(side)

    def point(u):
        # cos theta = -tanh u and sin theta = 1 / cosh u, without overflow
        e = np.exp(-abs(u))
        return -np.tanh(u) * a + 2 * e / (1 + e * e) * side

    def slowness(u):  # -dt/du
        y = point(u)
        return 1 + np.exp(y @ B @ (y - a))

    x = np.empty((len(t), 2, len(a)))
    u, now = np.log(chord / opposite), 0.0
    for j, time in enumerate(t):
        if time > now:
            # slowness >= 1, so u has fallen by at most time - now
            u = _advance(slowness, u, time - now)
            now = time
        x[j] = a, point(u)
    return normalise(x)


def _advance(slowness, u: float, elapsed: float) -> float:
    """The u' < u with integral of `slowness` over [u', u] equal to `elapsed`."""

    def excess(v):
        return _integral(slowness, v, u) - elapsed

    # Quadrature over long stretches misses narrow peaks, so go in short ones.
    while u > -45:
        whole = _integral(slowness, u - 1, u)
        if whole >= elapsed:
            return brentq(excess, u - 1, u, xtol=1e-15, rtol=1e-15)
        u, elapsed = u - 1, elapsed - whole
    return u - elapsed / 2  # at theta < 1e-19 both weights are 1/2 to the last digit


def _integral(f, a: float, b: float) -> float:
    """Quadrature to the last digits; with its full output, quad is silent about being at its limit."""
    return quad(f, a, b, epsabs=0, epsrel=1e-13, limit=500, full_output=1)[0]
