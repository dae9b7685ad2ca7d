r"""Compiled loops for the field of (CSA) and (SA), its linearisation, and linear solves.

Everything here works on one *system*, a tuple of five float64 matrices
``(B, V, S, mass, control)``:

- ``B``: beta Q^T K, shape (d, d); the logit of token j for token k is x_k^T B x_j
- ``V``: the value matrix, shape (d, d)
- ``S``: V - shift I, what V does in a token's own term (see below)
- ``mass``: how often each key counts; shape (0, 0) for once each, (1, n) for one number a
  key, (n, n) for one number a pair
- ``control``: one row; causal (0 or 1), number of frozen tokens, and whether the own logit
  is the largest of its row (0 or 1)

The first ``frozen`` tokens do not move; all others see them.  No n x n matrix is formed
by the field: memory is O(n d) and a row buffer per thread.

**The own term.**  The projection P_x removes every multiple of x, so the own value V x_k
may be replaced by (V - shift I) x_k.  In exact arithmetic nothing changes.  In floating
point the velocity of a token that only far clusters pull, 1e-50 say, would drown in the
rounding of V x_k; with the leading eigenvalue as shift it keeps its relative accuracy.

**Rows and largest logits.**  Weights are exp(logit - top) with a number `top` that no
logit of the row exceeds.  For B = beta I, beta >= 0, it is the own logit.  In general it
is the length of B^T x_k, which bounds all logits of unit keys, if that is at most `FAR`,
so that no weight underflows; else the largest logit is searched.
"""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from .compiled import exp, loop

__all__ = ["fields", "linearise", "make_system", "make_work", "solve", "velocity", "velocity_parallel"]

#: Rows times keys from which a single field is worth spreading over the cores.
PARALLEL_FROM = 200_000
#: The same for a field inside a long run, where others may want the cores.
PARALLEL_FROM_STEP = 1_000_000
#: Dimension and tokens from which matrix products beat the row loop.
TILES_FROM_D, TILES_FROM_N = 12, 128

#: e^{-2 FAR} is still a normal number.
FAR = 300.0

_BLOCK = 32  # rows handed to a thread at a time
_TILE = 128  # rows of one matrix product


@loop()
def _product(x, M, out):
    """out = x M for tokens in the rows."""
    n, d = x.shape
    for k in range(n):
        for b in range(d):
            total = 0.0
            for a in range(d):
                total += x[k, a] * M[a, b]
            out[k, b] = total


@loop()
def _columns(x, M, out):
    """out[a, j] = (M x_j)_a: the images of all tokens, one coordinate a row."""
    n, d = x.shape
    for a in range(d):
        for j in range(n):
            total = 0.0
            for b in range(d):
                total += M[a, b] * x[j, b]
            out[a, j] = total


@loop()
def _largest2(q0, q1, xt, lo, hi, top):
    for j in range(lo, hi):
        top = max(top, q0 * xt[0, j] + q1 * xt[1, j])
    return top


@loop()
def _largest3(q0, q1, q2, xt, lo, hi, top):
    for j in range(lo, hi):
        top = max(top, q0 * xt[0, j] + q1 * xt[1, j] + q2 * xt[2, j])
    return top


@loop()
def _sums2(q0, q1, top, xt, vt, lo, hi):
    z = a0 = a1 = 0.0
    for j in range(lo, hi):
        w = exp(q0 * xt[0, j] + q1 * xt[1, j] - top)
        z += w
        a0 += w * vt[0, j]
        a1 += w * vt[1, j]
    return z, a0, a1


@loop()
def _sums3(q0, q1, q2, top, xt, vt, lo, hi):
    z = a0 = a1 = a2 = 0.0
    for j in range(lo, hi):
        w = exp(q0 * xt[0, j] + q1 * xt[1, j] + q2 * xt[2, j] - top)
        z += w
        a0 += w * vt[0, j]
        a1 += w * vt[1, j]
        a2 += w * vt[2, j]
    return z, a0, a1, a2


@loop()
def _weigh(q, xt, keys, mass, k, row):
    """Unnormalised weights of the first `keys` tokens for token k into `row`; their sum."""
    d = len(q)
    for j in range(keys):
        row[j] = q[0] * xt[0, j]
    for a in range(1, d):
        qa = q[a]
        for j in range(keys):
            row[j] += qa * xt[a, j]
    top = row[0]
    for j in range(1, keys):
        top = max(top, row[j])
    z = 0.0
    if mass.shape[0] == 0:
        for j in range(keys):
            w = exp(row[j] - top)
            row[j] = w
            z += w
    else:
        times = mass[min(k, mass.shape[0] - 1)]
        for j in range(keys):
            w = times[j] * exp(row[j] - top)
            row[j] = w
            z += w
    return z


@loop()
def _rows(lo, hi, x, q, xt, vt, system, out):
    """Velocities of the tokens lo..hi-1."""
    _, _, S, mass, control = system
    causal, frozen, peaked = control[0, 0] != 0, int(control[0, 1]), control[0, 2] != 0
    n, d = x.shape
    row = np.empty(n)
    a = np.empty(d)
    for k in range(lo, hi):
        if k < frozen:
            for b in range(d):
                out[k, b] = 0.0
            continue
        keys = k + 1 if causal else n
        own = 1.0
        if d == 2 and mass.shape[0] == 0:
            q0, q1 = q[k, 0], q[k, 1]
            logit = q0 * x[k, 0] + q1 * x[k, 1]
            top = logit
            if not peaked:
                top = math.sqrt(q0 * q0 + q1 * q1)
                if top > FAR:
                    top = _largest2(q0, q1, xt, k + 1, keys, _largest2(q0, q1, xt, 0, k, logit))
                own = exp(logit - top)
            z, a0, a1 = _sums2(q0, q1, top, xt, vt, 0, k)
            if keys > k + 1:
                z1, b0, b1 = _sums2(q0, q1, top, xt, vt, k + 1, keys)
                z, a0, a1 = z + z1, a0 + b0, a1 + b1
            a[0], a[1] = a0, a1
        elif d == 3 and mass.shape[0] == 0:
            q0, q1, q2 = q[k, 0], q[k, 1], q[k, 2]
            logit = q0 * x[k, 0] + q1 * x[k, 1] + q2 * x[k, 2]
            top = logit
            if not peaked:
                top = math.sqrt(q0 * q0 + q1 * q1 + q2 * q2)
                if top > FAR:
                    top = _largest3(q0, q1, q2, xt, k + 1, keys, _largest3(q0, q1, q2, xt, 0, k, logit))
                own = exp(logit - top)
            z, a0, a1, a2 = _sums3(q0, q1, q2, top, xt, vt, 0, k)
            if keys > k + 1:
                z1, b0, b1, b2 = _sums3(q0, q1, q2, top, xt, vt, k + 1, keys)
                z, a0, a1, a2 = z + z1, a0 + b0, a1 + b1, a2 + b2
            a[0], a[1], a[2] = a0, a1, a2
        else:
            z = _weigh(q[k], xt, keys, mass, k, row)
            own = row[k]
            row[k] = 0.0
            z -= own
            for b in range(d):
                total = 0.0
                for j in range(keys):
                    total += row[j] * vt[b, j]
                a[b] = total
        _finish(k, x, S, a, own, z + own, out)


@loop()
def _finish(k, x, S, a, own, z, out):
    """Add the own term to the sum `a`, divide by z and project."""
    d = x.shape[1]
    radial = 0.0
    for b in range(d):
        value = 0.0
        for c in range(d):
            value += S[b, c] * x[k, c]
        a[b] = (a[b] + own * value) / z
        radial += a[b] * x[k, b]
    for b in range(d):
        out[k, b] = a[b] - radial * x[k, b]


@loop()
def _tile(L, first, causal, z, own):
    """Rows of logits to unnormalised weights, in place; their sums and own weights.

    What the mask hides becomes 0, and so does the own weight, which is handled apart.
    """
    rows, n = L.shape
    for i in range(rows):
        row = L[i]
        keys = min(first + i + 1, n) if causal else n
        top = row[0]
        for j in range(1, keys):
            top = max(top, row[j])
        total = 0.0
        for j in range(keys):
            w = exp(row[j] - top)
            row[j] = w
            total += w
        for j in range(keys, n):
            row[j] = 0.0
        z[i], own[i] = total, row[first + i]
        row[first + i] = 0.0


@loop(parallel=True)
def _tile_parallel(L, first, causal, z, own):
    rows = L.shape[0]
    share = (rows + 7) // 8
    for s in prange(8):
        lo, hi = s * share, min((s + 1) * share, rows)
        if lo < hi:
            _tile(L[lo:hi], first + lo, causal, z[lo:hi], own[lo:hi])


@loop()
def _by_products(x, system, parallel, out):
    """The field by matrix products, a tile of rows at a time; for large d, without masses."""
    B, V, S, _, control = system
    causal, frozen = control[0, 0] != 0, int(control[0, 1])
    n, d = x.shape
    q = np.dot(x, B)
    values = np.dot(x, np.ascontiguousarray(V.T))
    store = np.empty(_TILE * n)
    sums = np.empty((_TILE, d))
    for k in range(min(frozen, n)):
        out[k] = 0.0
    for lo in range(frozen, n, _TILE):
        hi = min(lo + _TILE, n)
        keys = hi if causal else n
        L = store[: (hi - lo) * keys].reshape((hi - lo, keys))
        np.dot(q[lo:hi], x[:keys].T, L)
        own, z = np.empty(hi - lo), np.empty(hi - lo)
        if parallel:
            _tile_parallel(L, lo, causal, z, own)
        else:
            _tile(L, lo, causal, z, own)
        total = sums[: hi - lo]
        np.dot(L, values[:keys], total)
        for k in range(lo, hi):
            _finish(k, x, S, total[k - lo], own[k - lo], z[k - lo], out)


@loop()
def velocity(x, system, out):
    """The field at unit tokens x (n, d) into out (n, d), on one core."""
    n, d = x.shape
    if d >= TILES_FROM_D and n >= TILES_FROM_N and system[3].shape[0] == 0:
        _by_products(x, system, False, out)
        return
    q, xt, vt = np.empty((n, d)), np.empty((d, n)), np.empty((d, n))
    _product(x, system[0], q)
    for a in range(d):
        for j in range(n):
            xt[a, j] = x[j, a]
    _columns(x, system[1], vt)
    _rows(0, n, x, q, xt, vt, system, out)


@loop(parallel=True)
def velocity_parallel(x, system, out):
    """The same on all cores."""
    n, d = x.shape
    if d >= TILES_FROM_D and n >= TILES_FROM_N and system[3].shape[0] == 0:
        _by_products(x, system, True, out)
        return
    q, xt, vt = np.empty((n, d)), np.empty((d, n)), np.empty((d, n))
    _product(x, system[0], q)
    for a in range(d):
        for j in range(n):
            xt[a, j] = x[j, a]
    _columns(x, system[1], vt)
    blocks = (n + _BLOCK - 1) // _BLOCK
    for i in prange(blocks):
        # Threads get consecutive i: alternate short rows and long rows.
        block = i // 2 if i % 2 == 0 else blocks - 1 - i // 2
        _rows(block * _BLOCK, min((block + 1) * _BLOCK, n), x, q, xt, vt, system, out)


@loop(parallel=True)
def _fields(x, B, V, S, mass, control, out):
    """The fields of a stack of systems x (runs, n, d) on all cores; matrices (1 or runs, d, d)."""
    runs, n, d = x.shape
    q, xt, vt = np.empty((runs, n, d)), np.empty((runs, d, n)), np.empty((runs, d, n))
    for i in prange(runs):
        m = np.int64(i) if len(B) > 1 else 0
        _product(x[i], B[m], q[i])
        for a in range(d):
            for j in range(n):
                xt[i, a, j] = x[i, j, a]
        _columns(x[i], V[m], vt[i])
    blocks = (n + _BLOCK - 1) // _BLOCK
    for i in prange(runs * blocks):
        run = np.int64(i) // blocks  # an unsigned i minus a signed number would be a float
        b = np.int64(i) % blocks
        block = b // 2 if b % 2 == 0 else blocks - 1 - b // 2
        m = run if len(B) > 1 else 0
        system = (B[m], V[m], S[m], mass, control)
        _rows(block * _BLOCK, min((block + 1) * _BLOCK, n), x[run], q[run], xt[run], vt[run], system, out[run])


def make_system(B, V, *, causal: bool, frozen: int = 0, mass=None, shift: float = 0.0) -> tuple:
    """A system for the compiled loops; arguments are not checked.

    Parameters
    ----------
    B, V : ndarray, shape (d, d)
        beta Q^T K and the value matrix.
    causal : bool
    frozen : int
        The first so many tokens do not move.
    mass : ndarray, shape (n,) or (n, n), optional
        How often each key counts, > 0.
    shift : float
        See the module's text.
    """
    d = len(B)
    B, V = np.ascontiguousarray(B, dtype=float), np.ascontiguousarray(V, dtype=float)
    mass = np.empty((0, 0)) if mass is None else np.ascontiguousarray(np.atleast_2d(mass), dtype=float)
    peaked = B[0, 0] >= 0 and np.array_equal(B, B[0, 0] * np.eye(d))
    control = np.array([[float(causal), float(frozen), float(peaked)]])
    return B, V, np.ascontiguousarray(V - shift * np.eye(d)), mass, control


# --- Linearisation under the causal mask, for linearly implicit steps -------------------
#
# The unknowns are displacements u_k orthogonal to x_k, through the chart
# u -> (x + u) / |x + u| of the integrators.  On the circle they are single numbers along the unit tangent
# (-x_2, x_1), and the Jacobian is stored; elsewhere they are vectors of R^d, and the
# weights are stored, from which products with the Jacobian cost O(n^2 d).
# Block (k, j) of the Jacobian in these unknowns, with weights w, values u_j = V x_j
# (S x_k for j = k), mean a = sum_j w_j u_j and q = B^T x_k, is
#     P_k w_j (V + (u_j - a) q^T) P_j                                      for j < k,
#     P_k (w_k (S + (u_k - a) q^T) + sum_j w_j (u_j - a) (B x_j)^T - <a, x_k> I) P_k  for j = k.


def make_work(n: int, d: int) -> tuple:
    """Storage for a linearisation of n tokens in dimension d; about 4 n^2 bytes."""
    pairs = n * (n + 1) // 2
    if d == 2:
        shapes = [(1, pairs), (2, n), (1, n)] + 5 * [(0, 0)]
    else:
        shapes = [(1, pairs), (n, d), (d, n), (n, d), (n, d * d), (n, d * d), (2 * d, n), (n, d)]
    return tuple(np.empty(shape) for shape in shapes)


@loop()
def _linear2(lo, hi, x, xt, system, J, f):
    """Rows lo..hi-1 of the Jacobian on the circle, and the angular velocities f."""
    B, V, S, mass, control = system
    frozen = int(control[0, 1])
    q = np.empty(2)
    for k in range(lo, hi):
        row = J[k * (k + 1) // 2 : (k + 1) * (k + 2) // 2]
        if k < frozen:
            f[k, 0] = 0.0
            for j in range(k + 1):
                row[j] = 0.0
            continue
        x0, x1 = x[k, 0], x[k, 1]
        t0, t1 = -x1, x0
        q[0], q[1] = x0 * B[0, 0] + x1 * B[1, 0], x0 * B[0, 1] + x1 * B[1, 1]
        p0, p1 = V[0, 0] * t0 + V[1, 0] * t1, V[0, 1] * t0 + V[1, 1] * t1  # V^T t
        z = _weigh(q, xt, k + 1, mass, k, row)
        pull = 0.0
        for j in range(k):
            pull += row[j] * (p0 * xt[0, j] + p1 * xt[1, j])
        s0, s1 = S[0, 0] * x0 + S[0, 1] * x1, S[1, 0] * x0 + S[1, 1] * x1
        own = t0 * s0 + t1 * s1
        velocity_k = (pull + row[k] * own) / z
        f[k, 0] = velocity_k
        # Sums of w, w x and w <t, V x> x over the earlier tokens for the diagonal entry,
        # before the weights are overwritten by the entries of the row.
        m0 = m1 = c0 = c1 = 0.0
        q0, q1 = q[0], q[1]
        for j in range(k):
            w = row[j] / z
            y0, y1 = xt[0, j], xt[1, j]
            p = w * (p0 * y0 + p1 * y1 - velocity_k)
            m0 += w * y0
            m1 += w * y1
            c0 += p * y0
            c1 += p * y1
            row[j] = w * (p1 * y0 - p0 * y1) + p * (q1 * y0 - q0 * y1)
        w = row[k] / z
        p = w * (own - velocity_k)
        c0 += p * x0
        c1 += p * x1
        b0, b1 = B[0, 0] * t0 + B[1, 0] * t1, B[0, 1] * t0 + B[1, 1] * t1  # B^T t
        turn = t0 * (S[0, 0] * t0 + S[0, 1] * t1) + t1 * (S[1, 0] * t0 + S[1, 1] * t1)
        v0, v1 = V[0, 0] * x0 + V[1, 0] * x1, V[0, 1] * x0 + V[1, 1] * x1  # V^T x
        radial = v0 * m0 + v1 * m1 + w * (x0 * s0 + x1 * s1)
        row[k] = w * turn + p * (q0 * t0 + q1 * t1) + (b0 * c0 + b1 * c1) - radial


@loop()
def _linear(lo, hi, x, xt, system, work, f):
    """Weights, means and diagonal blocks of tokens lo..hi-1, and the velocities f."""
    B, _, S, mass, control = system
    weights, q, vt, mean, diagonal, _, _, _ = work
    frozen = int(control[0, 1])
    n, d = x.shape
    s, a = np.empty(d), np.empty(d)
    M, C = np.empty((d, d)), np.empty((d, d))
    shifted = np.empty(n)
    for k in range(lo, hi):
        row = weights[0, k * (k + 1) // 2 : (k + 1) * (k + 2) // 2]
        if k < frozen:
            for b in range(d):
                f[k, b] = 0.0
                mean[k, b] = 0.0
            for j in range(k + 1):
                row[j] = 0.0
            for b in range(d * d):
                diagonal[k, b] = 0.0
            continue
        z = _weigh(q[k], xt, k + 1, mass, k, row)
        for j in range(k + 1):
            row[j] /= z
        own = row[k]
        radial = 0.0
        for b in range(d):
            total = 0.0
            for j in range(k):
                total += row[j] * vt[b, j]
            s[b] = 0.0
            for c in range(d):
                s[b] += S[b, c] * x[k, c]
            a[b] = total + own * s[b]
            mean[k, b] = a[b]
            radial += a[b] * x[k, b]
        for b in range(d):
            f[k, b] = a[b] - radial * x[k, b]
        # C = sum_j w_j (u_j - a) x_j^T
        for b in range(d):
            ab = a[b]
            for j in range(k):
                shifted[j] = row[j] * (vt[b, j] - ab)
            shifted[k] = own * (s[b] - ab)
            for c in range(d):
                total = 0.0
                for j in range(k + 1):
                    total += shifted[j] * xt[c, j]
                C[b, c] = total
        for b in range(d):
            for c in range(d):
                total = own * (S[b, c] + (s[b] - a[b]) * q[k, c])
                for e in range(d):
                    total += C[b, e] * B[c, e]
                M[b, c] = total
            M[b, b] -= radial
        for b in range(d):
            for c in range(d):
                diagonal[k, b * d + c] = M[b, c]


@loop()
def linearise(x, system, work, f):
    """Store the linearisation at unit tokens x (n, d) in `work`, the velocity in f (n, m).

    m = 1 on the circle, d elsewhere.
    """
    n, d = x.shape
    if d == 2:
        xt = work[1]
        for j in range(n):
            xt[0, j], xt[1, j] = x[j, 0], x[j, 1]
        _linear2(0, n, x, xt, system, work[0][0], f)
        return
    xt = np.empty((d, n))
    for a in range(d):
        for j in range(n):
            xt[a, j] = x[j, a]
    _product(x, system[0], work[1])
    _columns(x, system[1], work[2])
    work[7][:] = x
    _linear(0, n, x, xt, system, work, f)


@loop(parallel=True)
def linearise_parallel(x, system, work, f):
    """The same on all cores."""
    n, d = x.shape
    blocks = (n + _BLOCK - 1) // _BLOCK
    xt = np.empty((d, n))
    for a in range(d):
        for j in range(n):
            xt[a, j] = x[j, a]
    if d > 2:
        _product(x, system[0], work[1])
        _columns(x, system[1], work[2])
        work[7][:] = x
    else:
        work[1][:] = xt
    for i in prange(blocks):
        block = i // 2 if i % 2 == 0 else blocks - 1 - i // 2
        lo, hi = block * _BLOCK, min((block + 1) * _BLOCK, n)
        if d == 2:
            _linear2(lo, hi, x, xt, system, work[0][0], f)
        else:
            _linear(lo, hi, x, xt, system, work, f)


@loop()
def _tangent_basis(x, T):
    """An orthonormal basis T (d, d - 1) of the vectors orthogonal to the unit vector x."""
    d = len(x)
    # All but the first column of the reflection that takes x to the first axis.
    sign = 1.0 if x[0] >= 0 else -1.0
    scale = 1.0 / (1.0 + abs(x[0]))
    for c in range(1, d):
        T[0, c - 1] = -sign * x[c]
        for b in range(1, d):
            T[b, c - 1] = (1.0 if b == c else 0.0) - x[b] * x[c] * scale


@loop()
def _inverse(A):
    """Inverse of a small matrix by Gauss-Jordan elimination with row exchanges; A is lost."""
    d = len(A)
    X = np.zeros((d, d))
    for c in range(d):
        X[c, c] = 1.0
    for c in range(d):
        p = c
        for b in range(c + 1, d):
            if abs(A[b, c]) > abs(A[p, c]):
                p = b
        if p != c:
            for b in range(d):
                kept = A[c, b]
                A[c, b] = A[p, b]
                A[p, b] = kept
                kept = X[c, b]
                X[c, b] = X[p, b]
                X[p, b] = kept
        pivot = A[c, c]
        for b in range(d):
            A[c, b] /= pivot
            X[c, b] /= pivot
        for r in range(d):
            if r != c:
                factor = A[r, c]
                for b in range(d):
                    A[r, b] -= factor * A[c, b]
                    X[r, b] -= factor * X[c, b]
    return X


@loop()
def solve(step, fresh, system, work, r):
    """Solve (I - step J) u = r by forward substitution, in place; r has shape (n, m).

    `fresh` tells that `step` or the linearisation changed since the last call.
    """
    n, m = r.shape
    if m == 1:
        J, u = work[0][0], work[2][0]
        for k in range(n):
            row = J[k * (k + 1) // 2 : (k + 1) * (k + 2) // 2]
            total = 0.0
            for j in range(k):
                total += row[j] * u[j]
            u[k] = (r[k, 0] + step * total) / (1.0 - step * row[k])
            r[k, 0] = u[k]
        return
    d = m
    V = system[1]
    weights, q, vt, mean, diagonal, inverse, store, x = work
    if fresh:
        # T (I - step T^t M T)^{-1} T^t with an orthonormal basis T of the tangent space: a
        # step of 1e50 would drown it in the rounding of the normal direction.
        T, D, W = np.empty((d, d - 1)), np.empty((d - 1, d - 1)), np.empty((d, d - 1))
        for k in range(n):
            _tangent_basis(x[k], T)
            for b in range(d):
                for c in range(d - 1):
                    total = 0.0
                    for e in range(d):
                        total += diagonal[k, b * d + e] * T[e, c]
                    W[b, c] = total
            for b in range(d - 1):
                for c in range(d - 1):
                    total = 0.0
                    for e in range(d):
                        total += T[e, b] * W[e, c]
                    D[b, c] = (1.0 if b == c else 0.0) - step * total
            X = _inverse(D)
            for b in range(d):
                for c in range(d - 1):
                    total = 0.0
                    for e in range(d - 1):
                        total += T[b, e] * X[e, c]
                    W[b, c] = total
            for b in range(d):
                for c in range(d):
                    total = 0.0
                    for e in range(d - 1):
                        total += W[b, e] * T[c, e]
                    inverse[k, b * d + c] = total
    ut, wt = store[:d], store[d:]  # the solution and V times it, one coordinate a row
    s, a = np.empty(n), np.empty(d)
    for k in range(n):
        row = weights[0, k * (k + 1) // 2 : (k + 1) * (k + 2) // 2]
        total = 0.0
        if d == 3:
            q0, q1, q2 = q[k, 0], q[k, 1], q[k, 2]
            a0 = a1 = a2 = 0.0
            for j in range(k):
                w = row[j]
                t = w * (q0 * ut[0, j] + q1 * ut[1, j] + q2 * ut[2, j])
                total += t
                a0 += w * wt[0, j] + t * vt[0, j]
                a1 += w * wt[1, j] + t * vt[1, j]
                a2 += w * wt[2, j] + t * vt[2, j]
            a[0], a[1], a[2] = a0, a1, a2
        else:
            for j in range(k):
                s[j] = 0.0
            for b in range(d):
                qb = q[k, b]
                for j in range(k):
                    s[j] += qb * ut[b, j]
            for j in range(k):
                s[j] *= row[j]
                total += s[j]
            for b in range(d):
                t = 0.0
                for j in range(k):
                    t += row[j] * wt[b, j] + s[j] * vt[b, j]
                a[b] = t
        for b in range(d):
            r[k, b] += step * (a[b] - total * mean[k, b])
        for b in range(d):
            t = 0.0
            for c in range(d):
                t += inverse[k, b * d + c] * r[k, c]
            a[b] = t
        for b in range(d):
            r[k, b] = a[b]
            ut[b, k] = a[b]
        for b in range(d):
            t = 0.0
            for c in range(d):
                t += V[b, c] * a[c]
            wt[b, k] = t


# --- Doors for the rest of the package -------------------------------------------------


@loop()
def _fields_serial(x, B, V, S, mass, control, out):
    for i in range(len(x)):
        m = min(i, len(B) - 1)
        velocity(x[i], (B[m], V[m], S[m], mass, control), out[i])


def fields(x: np.ndarray, B: np.ndarray, V: np.ndarray, shift: np.ndarray, *, causal: bool, frozen=0, mass=None):
    """The fields of a stack of systems, on as many cores as they deserve.

    Arguments are not checked.

    Parameters
    ----------
    x : ndarray, shape (runs, n, d)
        Unit tokens.
    B, V : ndarray, shape (1 or runs, d, d)
        beta Q^T K and the value matrix.
    shift : ndarray, shape (1 or runs)
        See the module's text.
    causal : bool
    frozen : int
        The first so many tokens do not move.
    mass : ndarray, shape (n,), optional
        How often each key counts.

    Returns
    -------
    ndarray, shape (runs, n, d)
    """
    runs, n, d = x.shape
    x, B, V = (np.ascontiguousarray(a, dtype=float) for a in (x, B, V))
    eye = np.eye(d)
    S = V - shift[:, None, None] * eye
    peaked = all(b[0, 0] >= 0 and np.array_equal(b, b[0, 0] * eye) for b in B)
    control = np.array([[float(causal), float(frozen), float(peaked)]])
    mass = np.empty((0, 0)) if mass is None else np.ascontiguousarray(mass, dtype=float)[None]
    out = np.empty_like(x)
    products = d >= TILES_FROM_D and n >= TILES_FROM_N and not mass.size
    if runs * n * n < PARALLEL_FROM:
        _fields_serial(x, B, V, S, mass, control, out)
    elif products:
        for i in range(runs):
            m = min(i, len(B) - 1)
            velocity_parallel(x[i], (B[m], V[m], S[m], mass, control), out[i])
    else:
        _fields(x, B, V, S, mass, control, out)
    return out
