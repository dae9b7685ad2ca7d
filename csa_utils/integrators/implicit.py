"""RODAS4: a linearly implicit method of order 4 that needs no iteration.

A Rosenbrock method with six stages, stiffly accurate and L-stable, with an embedded
method of order 3 and an interpolant (Hairer and Wanner, Solving Ordinary Differential
Equations II, Section IV.7).  Each stage solves one linear system with the same matrix
I - gamma h J.  Under a causal mask J is block lower triangular, so a solve is a forward
substitution and no matrix is ever factored.

A step works with displacements u_k orthogonal to the tokens x_k, in the chart
u -> (x + u) / |x + u|; on the circle they are single numbers along (-x_2, x_1).
"""

from __future__ import annotations

import math

import numpy as np

from ..compiled import loop
from .adaptive import Stepper

#: A displacement a step may not exceed: the chart is the tangent plane.
FARTHEST = 0.5

GAMMA = 0.25
# The coefficients as they are published satisfy the conditions of order 4 only to 1e-9,
# which leaves an error of 1e-9 however short the step.  These are the nearest numbers
# that satisfy them all, together with those of the embedded method and the interpolant,
# to the last digit (Newton's method in 40 digits).
#: Stage s starts at x + sum_i A[s, i] u_i; the last two are x + (fourth row) + u_5 (+ u_6).
A = np.zeros((6, 6))
A[1, :1] = 1.543999999685416
A[2, :2] = 0.9466785281299899, 0.255701169685588
A[3, :3] = 3.3148251858370545, 2.89612401573542, 0.9986419149431351
A[4, :4] = 1.221224507630076, 6.019134481778668, 12.537083336052824, -0.6878860358594762
A[5] = A[4]
A[5, 4] = 1.0
#: Right-hand side of stage s: gamma h f + gamma sum_i C[s, i] u_i.
C = np.zeros((6, 6))
C[1, :1] = -5.668799999301784
C[2, :2] = -2.4300933576194943, -0.20635991597061024
C[3, :3] = -0.10735290806362517, -9.59456225028831, -20.47028614995165
C[4, :4] = 7.496443313935758, -10.246804314178558, -33.99990352785902, 11.708908933630788
C[5, :5] = 8.083246796883634, -7.981132988849454, -31.521594329118045, 16.3193054301478, -6.058818238012399
#: Interpolant: u(s) = s u_new + s (1 - s) (H[0].u + s H[1].u) at the share s of the step.
H = np.zeros((2, 6))
H[0, :5] = 10.126235084583453, -7.487995872712892, -34.80091863015682, -7.9927717031264445, 1.0251377213831971
H[1, :5] = -0.6762803408803235, 6.087714645890441, 16.430843229389613, 24.767225107660632, -6.5943891225173505


@loop(fastmath={"contract", "reassoc", "nsz"})
def _place(x, u, y):
    """y = (x + u) / |x + u|, with u along the tangent (-x_2, x_1) on the circle."""
    n, d = x.shape
    for k in range(n):
        if d == 2:
            y[k, 0], y[k, 1] = x[k, 0] - u[k, 0] * x[k, 1], x[k, 1] + u[k, 0] * x[k, 0]
        else:
            for b in range(d):
                y[k, b] = x[k, b] + u[k, b]
        norm = 0.0
        for b in range(d):
            norm += y[k, b] * y[k, b]
        norm = math.sqrt(norm)
        if abs(norm - 1.0) > 4e-16:  # else a token at rest would creep by roundings
            for b in range(d):
                y[k, b] /= norm


@loop(fastmath={"contract", "reassoc", "nsz"})
def _pull_back(x, u, y, F, f):
    """Velocity f (n, m) of the displacements u when the tokens y have velocity F (n, d)."""
    n, d = x.shape
    for k in range(n):
        if d == 2:
            f[k, 0] = (1.0 + u[k, 0] * u[k, 0]) * (y[k, 0] * F[k, 1] - y[k, 1] * F[k, 0])
            continue
        norm = 1.0
        along = 0.0
        for b in range(d):
            norm += u[k, b] * u[k, b]
            along += x[k, b] * F[k, b]
        norm = math.sqrt(norm)
        # |x + u| (F - <x, F> (x + u)), which is orthogonal to x
        for b in range(d):
            f[k, b] = norm * (F[k, b] - along * (x[k, b] + u[k, b]))


def _attempt(velocity, linearise, solve, system, work, store, x, h, fresh, y):
    """One step of length h from x to y; its estimated error in radians, inf if it failed."""
    U, f, g, u, total, z = store
    n, m = f.shape
    if fresh:
        linearise(x, system, work, f)
    gh = GAMMA * h
    for s in range(6):
        if s == 0:
            for k in range(n):
                for b in range(m):
                    g[k, b] = gh * f[k, b]
        else:
            for k in range(n):
                for b in range(m):
                    value = 0.0
                    for i in range(s):
                        value += A[s, i] * U[i * n + k, b]
                    u[k, b] = value
            _place(x, u, y)
            velocity(y, system, z)
            _pull_back(x, u, y, z, g)
            for k in range(n):
                for b in range(m):
                    value = 0.0
                    for i in range(s):
                        value += C[s, i] * U[i * n + k, b]
                    g[k, b] = gh * g[k, b] + GAMMA * value
        solve(gh, s == 0, system, work, g)
        for k in range(n):
            for b in range(m):
                U[s * n + k, b] = g[k, b]
    # The last stage is the difference to the embedded method of order 3.
    error = farthest = 0.0
    for k in range(n):
        wrong = far = 0.0
        for b in range(m):
            total[k, b] = u[k, b] + g[k, b]
            wrong += g[k, b] * g[k, b]
            far += total[k, b] * total[k, b]
        if not (math.isfinite(wrong) and math.isfinite(far)):
            return math.inf
        error, farthest = max(error, wrong), max(farthest, far)
    if farthest > FARTHEST * FARTHEST:
        return math.inf
    _place(x, total, y)
    return math.sqrt(error)


def _prepare(velocity, system, store, x, h):
    """Nothing: the stages are all the interpolant needs."""


def _interpolate(share, store, x, y):
    """Tokens y at a share of the step."""
    U, _, _, u, total, _ = store
    n, m = u.shape
    for k in range(n):
        for b in range(m):
            first = second = 0.0
            for i in range(5):
                first += H[0, i] * U[i * n + k, b]
                second += H[1, i] * U[i * n + k, b]
            u[k, b] = share * (total[k, b] + (1.0 - share) * (first + share * second))
    _place(x, u, y)


def _store(n: int, d: int) -> tuple:
    m = 1 if d == 2 else d
    return tuple(np.empty(shape) for shape in [(6 * n, m), (n, m), (n, m), (n, m), (n, m), (n, d)])


IMPLICIT = Stepper(
    name="implicit", order=4, attempt=_attempt, prepare=_prepare, interpolate=_interpolate, store=_store,
    evaluations=(5, 1, 0), growth=6.0, linear=True,
)  # fmt: skip
