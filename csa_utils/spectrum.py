"""Leading eigenspaces of a value matrix V.

The first token follows x' = P_x V x, so its fate is written in the part of the
spectrum of V with the largest real part.  With lambda that largest real part,

* L' is the real span of all generalised eigenvectors of eigenvalues with real
  part lambda (invariant under V);
* L, inside L', is spanned by the directions that e^{tV} amplifies most: by N^{k-1},
  the highest non-vanishing power of the nilpotent part N of V on L', where k is the
  size of the largest Jordan block.

(Lemma 3.1 of the paper.)  Everything is read off ordered Schur forms, which exist and
are stable for every matrix.  An eigenvector matrix does not: it is singular exactly
in the defective cases that matter here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import schur, solve_sylvester, svd
from scipy.linalg.lapack import ztrsen

from . import checks

__all__ = ["TOLERANCE", "LeadingEigenspace", "leading"]

#: Two matrices closer than this, relative to the norm of V, are not told apart.
TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class LeadingEigenspace:
    """The top of the spectrum of a real d x d matrix V.

    Attributes
    ----------
    growth : float
        Largest real part lambda of an eigenvalue.
    gap : float
        `growth` minus the next smaller real part; infinite if there is none.
    eigenvalues : ndarray of complex, shape (m,)
        Distinct eigenvalues with real part `growth`, by increasing imaginary part.
    kind : str
        "real" if the only one is real, "complex" if all are complex, else "mixed".
    multiplicity : int
        Dimension of L' (the algebraic multiplicity; a complex pair counts twice).
    jordan : int
        Size k of the largest Jordan block among these eigenvalues.
    generalised : ndarray, shape (d, multiplicity)
        Orthonormal basis of L', in its columns.
    basis : ndarray, shape (d, m_L)
        Orthonormal basis of L.
    projector : ndarray, shape (d, d)
        Spectral projector onto L' along the other invariant subspace of V.  Not
        orthogonal unless V is normal.
    amplifier : ndarray, shape (d, d)
        N^{k-1} times `projector`: it maps a start onto L, and its kernel is the
        exceptional subspace of Lemma 3.1.  Equals `projector` if `jordan` is 1.
    exceptional : ndarray, shape (d, d - m_L)
        Orthonormal basis of that kernel.
    tolerance : float
        The absolute tolerance that was used, `tol` times the norm of V.
    """

    growth: float
    gap: float
    eigenvalues: np.ndarray
    kind: str
    multiplicity: int
    jordan: int
    generalised: np.ndarray
    basis: np.ndarray
    projector: np.ndarray
    amplifier: np.ndarray
    exceptional: np.ndarray
    tolerance: float


@dataclass(frozen=True)
class _Cluster:
    """Eigenvalues that one Jordan structure, blurred by rounding, explains."""

    mean: complex
    members: np.ndarray  # positions on the diagonal of the Schur form
    blocks: tuple[int, ...]  # blocks[i] Jordan blocks have size i + 1 or more

    @property
    def jordan(self) -> int:
        return len(self.blocks)


def leading(V, tol: float = TOLERANCE):
    """Leading eigenspaces L' and L of a real matrix.

    Rounding splits a Jordan block of size m into m eigenvalues about eps^{1/m} apart,
    so eigenvalues cannot be compared one by one.  Here a set of eigenvalues counts as
    one when the matrix is close to one in which they coincide: when the Schur block of
    the set, minus its mean, is turned into a nilpotent matrix by dropping singular
    values below ``tol * norm(V)``.  The staircase that does this also yields the sizes
    of the Jordan blocks.

    Parameters
    ----------
    V : array_like, shape (..., d, d)
        Real square matrices.
    tol : float
        Relative tolerance, in (0, 1).

    Returns
    -------
    LeadingEigenspace
        For stacked matrices, an object array of them with the leading shape.

    Raises
    ------
    ValueError
        If `V` is not square, real and finite, or `tol` is out of range.

    Notes
    -----
    Matrices within the tolerance of a more degenerate one are reported as the more
    degenerate one.  Zero matrices have growth 0, multiplicity d and no gap.

    References
    ----------
    Kagstrom and Ruhe, "An algorithm for numerical computation of the Jordan normal
    form of a complex matrix", ACM Trans. Math. Softw. 6 (1980), for the staircase.
    """
    V = checks.matrix("V", V)
    tol = checks.positive("tol", tol)
    if tol >= 1:
        raise ValueError(f"tol must be < 1, got {tol}")
    if V.ndim > 2:
        stack = np.empty(V.shape[:-2], dtype=object)
        for i in np.ndindex(stack.shape):
            stack[i] = leading(V[i], tol)
        return stack

    d = len(V)
    norm = np.linalg.norm(V, 2)
    if not norm < 1e150:
        raise ValueError(f"V must have a norm below 1e150 so that its square does not overflow, got {norm:g}")
    u = tol * norm
    T, Z = schur(V, output="complex")
    clusters = _top_clusters(T, Z, u, norm)
    growth = max(c.mean.real for c in clusters)
    top = [c for c in clusters if c.mean.real >= growth - u]
    members = np.concatenate([c.members for c in top])
    rest = np.delete(np.diag(T), members)
    m, k = len(members), max(c.jordan for c in top)

    projector = _spectral_projector(T, Z, members).real
    amplifier = np.zeros((d, d))
    rank = 0
    for c in top:
        if c.jordan == k:
            part = _spectral_projector(T, Z, c.members)
            N = (V - c.mean * np.eye(d)) @ part
            # The conjugate cluster is in `top` too and cancels the imaginary part.
            amplifier += (np.linalg.matrix_power(N, k - 1) @ part).real
            rank += c.blocks[-1]
    basis = _range(amplifier, rank)
    eigenvalues = np.array(sorted((c.mean for c in top), key=lambda z: z.imag))
    real = np.abs(eigenvalues.imag) <= u
    eigenvalues[real] = eigenvalues[real].real
    return LeadingEigenspace(
        growth=float(growth),
        gap=float(growth - rest.real.max()) if rest.size else float("inf"),
        eigenvalues=eigenvalues,
        kind="real" if real.all() else "complex" if not real.any() else "mixed",
        multiplicity=m,
        jordan=k,
        generalised=_range(projector, m),
        basis=basis,
        projector=projector,
        amplifier=amplifier,
        exceptional=_kernel(amplifier, rank),
        tolerance=float(u),
    )


def _top_clusters(T, Z, u: float, norm: float) -> list[_Cluster]:
    """Clusters of the Schur diagonal, from the largest real part down to where no
    blurred Jordan block could still reach the top."""
    w = np.diag(T)
    d = len(w)
    floor = w.real.max() - 2 * _reach(u, norm, d)
    free = list(np.argsort(-w.real))
    clusters = []
    while free and w[free[0]].real >= floor:
        cluster = _grow_cluster(T, Z, free, u, norm)
        clusters.append(cluster)
        free = [i for i in free if i not in set(cluster.members)]
    return clusters


def _reach(u: float, norm: float, m: int) -> float:
    """How far a perturbation of size u can move an eigenvalue of an m-block."""
    return norm * (u / norm) ** (1 / m) if norm > 0 else 0.0


def _grow_cluster(T, Z, free: list, u: float, norm: float) -> _Cluster:
    """The largest set around the first free eigenvalue that passes the test."""
    w = np.diag(T)
    order = sorted(free, key=lambda i: abs(w[i] - w[free[0]]))
    for m in range(len(order), 1, -1):
        members = np.array(order[:m])
        if abs(w[members[-1]] - w[free[0]]) > 2 * _reach(u, norm, m):
            continue
        # N within u sqrt(m) of a nilpotent matrix has tr N² below this: a cheap first sieve.
        offsets = w[members] - w[members].mean()
        if abs(np.sum(offsets**2)) > 8 * m * norm * u:
            continue
        block = _reorder(T, Z, members)[0][:m, :m]
        mean = np.trace(block) / m
        blocks = _staircase(block - mean * np.eye(m), u)
        if blocks is not None:
            return _Cluster(complex(mean), members, blocks)
    return _Cluster(complex(w[free[0]]), np.array(free[:1]), (1,))


def _staircase(N, u: float) -> tuple[int, ...] | None:
    """Nullities of a nearly nilpotent matrix, stage by stage, or None if it is not.

    Each stage drops the singular values up to u, splits off the kernel that leaves,
    and goes on with the rest.  The j-th entry counts the Jordan blocks of size >= j.
    """
    blocks = []
    while len(N):
        _, s, right = svd(N)
        nullity = int(np.count_nonzero(s <= u))
        if nullity == 0 or (blocks and nullity > blocks[-1]):
            return None
        blocks.append(nullity)
        keep = right[: len(N) - nullity]  # rows: an orthonormal basis off the kernel
        N = keep @ N @ keep.conj().T
    return tuple(blocks)


def _reorder(T, Z, members):
    """Schur form with the diagonal entries `members` moved to the top left."""
    select = np.zeros(len(T), dtype=np.int32)
    select[members] = 1
    ts, zs, _, _, _, _, info = ztrsen(select, T, Z, job="N")
    if info != 0:
        raise ArithmeticError(f"ztrsen could not reorder the Schur form (info {info})")
    return ts, zs


def _spectral_projector(T, Z, members):
    """Projector onto the invariant subspace of `members` along that of the others."""
    m, d = len(members), len(T)
    if m == d:
        return np.eye(d)
    ts, zs = _reorder(T, Z, members)
    # [[I, X], [0, 0]] commutes with T when T11 X - X T22 = T12.
    X = solve_sylvester(ts[:m, :m], -ts[m:, m:], ts[:m, m:])
    return zs[:, :m] @ np.hstack([np.eye(m), X]) @ zs.conj().T


def _range(A, rank: int) -> np.ndarray:
    """Orthonormal basis of the range of `A`, whose rank is known."""
    return svd(A)[0][:, :rank]


def _kernel(A, rank: int) -> np.ndarray:
    """Orthonormal basis of the kernel of `A`, whose rank is known."""
    return svd(A)[2][rank:].T
