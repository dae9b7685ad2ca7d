"""The explicit Runge-Kutta method of order 8 of Dormand and Prince, on the sphere.

Twelve stages, embedded methods of order 5 and 3 that steer the step, and an interpolant
of order 7 (Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I,
Section II.10; the coefficients are those of `scipy.integrate.DOP853`).  The field F is
continued to f(y) = |y| F(y/|y|), so that it is asked at unit vectors only, and tokens
return to length one after each step, which changes no direction.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.integrate import DOP853

from ..compiled import loop
from .adaptive import Stepper

A = np.zeros((16, 16))
A[:12, :12] = DOP853.A
A[12, :12] = DOP853.B  # the thirteenth stage is the new point
A[13:] = DOP853.A_EXTRA
E = np.ascontiguousarray(np.stack([DOP853.E3, DOP853.E5]))
D = np.ascontiguousarray(DOP853.D)


@loop(fastmath={"contract", "reassoc", "nsz"})
def _stage(x, K, s, h, y):
    """y = x + h sum_i A[s, i] K_i, with K_i in rows i n .. (i + 1) n - 1."""
    n, d = x.shape
    for k in range(n):
        for b in range(d):
            y[k, b] = 0.0
    for i in range(s):
        a = A[s, i]
        if a != 0.0:
            for k in range(n):
                for b in range(d):
                    y[k, b] += a * K[i * n + k, b]
    for k in range(n):
        for b in range(d):
            y[k, b] = x[k, b] + h * y[k, b]


@loop(fastmath={"contract", "reassoc", "nsz"})
def _normalise(y, unit, norms):
    n, d = y.shape
    for k in range(n):
        norm = 0.0
        for b in range(d):
            norm += y[k, b] * y[k, b]
        norms[k, 0] = math.sqrt(norm)
        if abs(norms[k, 0] - 1.0) <= 4e-16:  # else a token at rest would creep by roundings
            norms[k, 0] = 1.0
        for b in range(d):
            unit[k, b] = y[k, b] / norms[k, 0]


def _attempt(velocity, linearise, solve, system, work, store, x, h, fresh, y):
    """One step of length h from x to y; its estimated error in radians, inf if it failed."""
    K, _, z, norms = store[:4]
    n, d = x.shape
    if fresh:
        velocity(x, system, K[:n])
    for s in range(1, 13):
        _stage(x, K, s, h, z)
        _normalise(z, y, norms)
        velocity(y, system, K[s * n : (s + 1) * n])
        for k in range(n):
            for b in range(d):
                K[s * n + k, b] *= norms[k, 0]
    error = 0.0
    for k in range(n):
        third = fifth = 0.0
        for b in range(d):
            e3 = e5 = 0.0
            for i in range(13):
                e3 += E[0, i] * K[i * n + k, b]
                e5 += E[1, i] * K[i * n + k, b]
            third += e3 * e3
            fifth += e5 * e5
        if not (math.isfinite(third) and math.isfinite(fifth)):
            return math.inf
        if fifth > 0.0:
            error = max(error, h * fifth / math.sqrt(fifth + 0.01 * third))
    return error


def _prepare(velocity, system, store, x, h):
    """Three more stages and the coefficients of the interpolant."""
    K, F, z, norms, y = store[:5]
    n, d = x.shape
    for s in range(13, 16):
        _stage(x, K, s, h, z)
        _normalise(z, y, norms)
        velocity(y, system, K[s * n : (s + 1) * n])
        for k in range(n):
            for b in range(d):
                K[s * n + k, b] *= norms[k, 0]
    _stage(x, K, 12, h, z)
    for k in range(n):
        for b in range(d):
            delta = z[k, b] - x[k, b]
            F[k, b] = delta
            F[n + k, b] = h * K[k, b] - delta
            F[2 * n + k, b] = 2 * delta - h * (K[12 * n + k, b] + K[k, b])
            for r in range(4):
                value = 0.0
                for s in range(16):
                    value += D[r, s] * K[s * n + k, b]
                F[(3 + r) * n + k, b] = h * value


def _interpolate(share, store, x, y):
    """Tokens y at a share of the step."""
    _, F, z, norms = store[:4]
    n, d = x.shape
    for k in range(n):
        for b in range(d):
            value = 0.0
            for i in range(7):
                value += F[(6 - i) * n + k, b]
                value *= share if i % 2 == 0 else 1.0 - share
            z[k, b] = x[k, b] + value
    _normalise(z, y, norms)


def _store(n: int, d: int) -> tuple:
    return tuple(np.empty(shape) for shape in [(16 * n, d), (7 * n, d), (n, d), (n, 1), (n, d), (0, 0)])


EXPLICIT = Stepper(
    name="explicit", order=8, attempt=_attempt, prepare=_prepare, interpolate=_interpolate, store=_store,
    evaluations=(12, 1, 3), growth=10.0, linear=False,
)  # fmt: skip
