r"""The circle in angles: the field for d = 2, Q = K = V = I, densely and by Fourier sums.

Tokens are angles phi_k.  With K(t) = e^{beta (cos t - 1)} the field of (CSA) is

.. math::

    \dot\phi_k = \frac{1}{Z_k} \sum_j a_j K(\phi_k - \phi_j) \sin(\phi_j - \phi_k),
    \qquad Z_k = \sum_j a_j K(\phi_k - \phi_j),

over all frozen tokens, which count a_j times, and the tokens j <= k (all tokens without
the mask), which count once.

**Dense.**  O(n^2), in compiled loops.  The exponent is formed from differences of sines
and cosines, so that each velocity is accurate relative to its own size, down to 1e-300.

**Fourier.**  The numerator is the derivative of Z_k by phi_k, divided by beta.  With the
coefficients I_m(beta) e^{-beta} of K, running sums of e^{-i m phi_j} over the tokens give
numerator and Z_k together: O(n M) with M of order sqrt(beta) terms.  Its error is
*absolute*: about 1e-16 k / Z_k, where k is the number of tokens seen.  Velocities below
that are noise, so Fourier sums alone are useless among clusters, where forces are 1e-20.

**Which of the two.**  :func:`field` with ``method="auto"`` takes Fourier sums where they
are faster, estimates the error of each token, and computes densely each token for which
the estimate is above `RELATIVE` of its velocity.  So small velocities keep their accuracy.
"""

from __future__ import annotations

import math

import numpy as np
from numba import prange
from scipy.special import ive

from . import checks
from .compiled import exp, loop

__all__ = ["RELATIVE", "coefficients", "field"]

#: Largest error of a token, relative to its velocity, that method="auto" leaves to Fourier sums.
RELATIVE = 1e-6
#: Fourier's error is about so many roundings of k / Z_k, the tokens seen over their weight.
ROUNDINGS = 4.0

_SAFE = {"contract", "reassoc", "nsz"}
_NEAR = 64  # tokens summed densely before they join the running sums
_GROUPS = 2  # of Fourier terms, each begun anew from sines and cosines


def coefficients(beta: float, error: float = 2.0**-54) -> np.ndarray:
    """Fourier coefficients a_m of e^{beta (cos t - 1)} = a_0 + 2 sum_m a_m cos(m t).

    Parameters
    ----------
    beta : float
        Inverse temperature, finite and >= 0.
    error : float
        Bound on the sum of all that is left out, in (0, 1).

    Returns
    -------
    ndarray, shape (M + 1,)
        I_m(beta) e^{-beta} with modified Bessel functions I_m; M >= 1 is as small as
        `error` allows (Abramowitz and Stegun 9.6.34).

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    beta = _number(beta)
    error = checks.positive("error", error)
    if error >= 1:
        raise ValueError(f"error must be below 1, got {error}")
    most = int(math.sqrt(2 * beta * math.log(1e3 / error)) + 2 * math.log(1e3 / error)) + 10
    a = ive(np.arange(most + 1), beta)
    # The numerator weighs terms by m / beta, which is below 1 for the terms that matter.
    rest = 2 * np.cumsum(a[::-1])[::-1]
    return a[: max(2, int(np.argmax(rest < error)))].copy()


@loop()
def _dense_row(c, s, weights, lo, hi, ck, sk, beta):
    """Weight and weighted sine of the keys lo..hi-1 for a token at (ck, sk)."""
    z = u = 0.0
    for j in range(lo, hi):
        dc, ds = c[j] - ck, s[j] - sk
        w = weights[j] * exp(-0.5 * beta * (dc * dc + ds * ds))
        z += w
        u += w * (s[j] * ck - c[j] * sk)
    return z, u


@loop()
def _plain_row(c, s, lo, hi, ck, sk, beta):
    z = u = 0.0
    for j in range(lo, hi):
        dc, ds = c[j] - ck, s[j] - sk
        w = exp(-0.5 * beta * (dc * dc + ds * ds))
        z += w
        u += w * (s[j] * ck - c[j] * sk)
    return z, u


@loop()
def _dense_token(c, s, weights, frozen, k, causal, beta):
    """Velocity of token k; frozen keys come first in c, s and weights."""
    i = frozen + k
    ck, sk = c[i], s[i]
    z, u = _dense_row(c, s, weights, 0, frozen, ck, sk, beta)
    # Its own term is exact: weight 1 and sine 0.
    z1, u1 = _plain_row(c, s, frozen, i, ck, sk, beta)
    z, u = z + z1 + 1.0, u + u1
    if not causal:
        z1, u1 = _plain_row(c, s, i + 1, len(c), ck, sk, beta)
        z, u = z + z1, u + u1
    return u / z


@loop(parallel=True)
def _dense(c, s, weights, frozen, causal, beta, which, out):
    """Velocities of the tokens `which`, on all cores."""
    for i in prange(len(which)):
        # Threads get consecutive i: alternate short rows and long rows.
        k = which[i // 2 if i % 2 == 0 else len(which) - 1 - i // 2]
        out[k] = _dense_token(c, s, weights, frozen, k, causal, beta)


@loop()
def _dense_serial(c, s, weights, frozen, causal, beta, which, out):
    for k in which:
        out[k] = _dense_token(c, s, weights, frozen, k, causal, beta)


# Two loops, for with six arrays in one the compiler gives up on vectors.
# Two loops, for with six arrays in one the compiler gives up on vectors.
@loop(fastmath=_SAFE)
def _evaluate(size, re, im, sr, si, am, dm, z, u):
    """Add one term: the running sum (sr, si) seen from tokens with powers (re, im)."""
    for k in range(size):
        z[k] += am * (re[k] * sr + im[k] * si)
        u[k] += dm * (re[k] * si - im[k] * sr)


@loop(fastmath=_SAFE)
def _raise(size, re, im, c, s):
    """Raise the powers (re, im) by one; the sum of what they were."""
    tr = ti = 0.0
    for k in range(size):
        x, y = re[k], im[k]
        tr += x
        ti += y
        re[k] = x * c[k] - y * s[k]
        im[k] = x * s[k] + y * c[k]
    return tr, ti


@loop(fastmath=_SAFE)
def _power(c, s, m):
    """(c + i s)^m by squaring."""
    x, y = 1.0, 0.0
    while m:
        if m % 2:
            x, y = x * c - y * s, x * s + y * c
        c, s = c * c - s * s, 2.0 * c * s
        m //= 2
    return x, y


@loop(fastmath=_SAFE)
def _terms(c, s, weights, frozen, causal, a, first, last, Z, U):
    """Terms first..last of the Fourier sums of all tokens, but for those of their own block."""
    terms = last - first + 1
    # Running sums of e^{i m phi}; first what is seen from the start: frozen tokens, and
    # all tokens without the mask.
    re, im = np.zeros(terms), np.zeros(terms)
    for j in range(frozen if causal else len(c)):
        x, y = _power(c[j], s[j], first)
        x, y = weights[j] * x, weights[j] * y
        for m in range(terms):
            re[m] += x
            im[m] += y
            x, y = x * c[j] - y * s[j], x * s[j] + y * c[j]
    # Copies of a block: slices inside the loop over terms would cost more than the loop.
    x, y, cb, sb = np.empty(_NEAR), np.empty(_NEAR), np.empty(_NEAR), np.empty(_NEAR)
    z, u = np.empty(_NEAR), np.empty(_NEAR)
    for lo in range(frozen, len(c), _NEAR):
        size = min(_NEAR, len(c) - lo)
        for k in range(size):
            cb[k], sb[k] = c[lo + k], s[lo + k]
            x[k], y[k] = _power(cb[k], sb[k], first)
            z[k] = u[k] = 0.0
        for m in range(terms):
            am = 2.0 * a[first + m]
            _evaluate(size, x, y, re[m], im[m], am, am * (first + m), z, u)
            tr, ti = _raise(size, x, y, cb, sb)
            if causal:
                re[m] += tr
                im[m] += ti
        for k in range(size):
            Z[lo - frozen + k], U[lo - frozen + k] = z[k], u[k]


@loop(fastmath=_SAFE, parallel=True)
def _fourier(c, s, weights, frozen, causal, beta, a, Z, U):
    """Weights Z and weighted sines U of all tokens by Fourier sums.

    Terms are split into groups, so that cores share them.  Within a block of tokens the
    sums are dense: a running sum token by token would have no vector instructions.
    """
    n, M = len(c) - frozen, len(a) - 1
    groups = min(_GROUPS, M)
    partial = np.zeros((groups, 2, n))
    for group in prange(groups):
        first, last = 1 + group * M // groups, (group + 1) * M // groups
        _terms(c, s, weights, frozen, causal, a, first, last, partial[group, 0], partial[group, 1])
    total = 0.0
    for j in range(frozen if causal else len(c)):
        total += weights[j]
    blocks = (n + _NEAR - 1) // _NEAR
    for block in prange(blocks):
        lo, hi = block * _NEAR, min((block + 1) * _NEAR, n)
        for k in range(lo, hi):
            z = u = 0.0
            if causal:  # its own term has weight 1 and sine 0
                z, u = _plain_row(c, s, frozen + lo, frozen + k, c[frozen + k], s[frozen + k], beta)
                z += 1.0 + a[0] * lo
            z += a[0] * total
            for group in range(groups):
                z += partial[group, 0, k]
                u += partial[group, 1, k] / beta
            Z[k], U[k] = z, u


def field(phi, *, beta=1.0, causal: bool = True, frozen=None, frozen_weights=None, method: str = "auto") -> np.ndarray:
    """Angular velocity of every token on the circle, for Q = K = V = I.

    Parameters
    ----------
    phi : array_like, shape (..., n)
        Angles in radians.
    beta : float
        Inverse temperature, finite and >= 0.
    causal : bool
        With the mask, token k sees tokens 1..k only.
    frozen : array_like, shape (m,), optional
        Angles of tokens that never move and are seen by all.
    frozen_weights : array_like, shape (m,), optional
        How often each of them counts, > 0; once if left out.
    method : str
        "dense", accurate relative to each velocity; "fourier", O(n sqrt(beta)) with an
        absolute error of about 1e-16 k / Z_k; or "auto" (see the module's text).

    Returns
    -------
    ndarray, shape (..., n)

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    phi = checks.array("phi", phi)
    if phi.ndim < 1 or phi.size == 0:
        raise ValueError(f"phi must have shape (..., n) with at least one token, got shape {phi.shape}")
    beta = _number(beta)
    if not isinstance(causal, (bool, np.bool_)):
        raise ValueError(f"causal must be True or False, got {causal!r}")
    if method not in ("auto", "dense", "fourier"):
        raise ValueError(f"method must be 'auto', 'dense' or 'fourier', got {method!r}")
    centers, counts = _frozen(frozen, frozen_weights)
    out = np.empty(phi.shape)
    for i in np.ndindex(phi.shape[:-1]):
        out[i] = _one(phi[i], beta, bool(causal), centers, counts, method)
    return out


def _one(phi, beta, causal, centers, counts, method) -> np.ndarray:
    n, m = len(phi), len(centers)
    angle = np.concatenate([centers, phi])
    c, s = np.cos(angle), np.sin(angle)
    weights = np.concatenate([counts, np.ones(n)])
    out = np.empty(n)
    dense = _dense if n * n > 100_000 else _dense_serial
    everyone = np.arange(n)
    if method == "auto" and not _pays(n, beta):
        method = "dense"
    if method == "dense":
        dense(c, s, weights, m, causal, beta, everyone, out)
        return out
    if beta == 0:  # all weights are equal: running sums of sines and cosines
        total = np.cumsum(weights)[m:] if causal else weights.sum()
        C, S = (np.cumsum(weights * part)[m:] if causal else (weights * part).sum() for part in (c, s))
        out = (S * c[m:] - C * s[m:]) / total
        Z = total * np.ones(n)
    else:
        Z, U = np.empty(n), np.empty(n)
        _fourier(c, s, weights, m, causal, beta, coefficients(beta), Z, U)
        out = U / Z
    if method == "auto":
        seen = np.cumsum(weights)[m:] if causal else weights.sum()
        # A non-positive sum is all noise, and no velocity exceeds 1.
        doubtful = ~(ROUNDINGS * np.finfo(float).eps * seen <= RELATIVE * np.abs(out) * Z) | (np.abs(out) > 1)
        if doubtful.any():
            dense(c, s, weights, m, causal, beta, everyone[doubtful], out)
    return out


def _pays(n: int, beta: float) -> bool:
    """Whether Fourier sums are likely faster than n/2 weights a token."""
    return n > 400 + 20 * math.sqrt(beta)


def _number(beta) -> float:
    beta = checks.inverse_temperature(beta)
    if beta.ndim:
        raise ValueError(f"beta must be a single number here, got shape {beta.shape}")
    return float(beta)


def _frozen(frozen, weights) -> tuple[np.ndarray, np.ndarray]:
    if frozen is None:
        if weights is not None:
            raise ValueError(f"frozen_weights must be left out without frozen tokens, got {weights!r}")
        return np.empty(0), np.empty(0)
    frozen = checks.array("frozen", frozen)
    if frozen.ndim != 1 or frozen.size == 0:
        raise ValueError(f"frozen must have shape (m,) with m >= 1, got {frozen.shape}")
    weights = np.ones(len(frozen)) if weights is None else checks.array("frozen_weights", weights)
    if weights.shape != frozen.shape:
        raise ValueError(f"frozen_weights must have shape {frozen.shape}, got {weights.shape}")
    if np.any(weights <= 0):
        raise ValueError(f"frozen_weights must be > 0, got {weights.min()}")
    return frozen, weights
