"""What one measures on tokens: diameter, clusters, collapse, distance to a subspace.

All functions take tokens (..., n, d), so a whole trajectory (T, ..., n, d) as well.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from . import checks, sphere

__all__ = [
    "clusters",
    "collapse_time",
    "diameter",
    "distance_to_subspace",
    "distances",
    "leaders",
    "number_of_clusters",
]


def distances(x) -> np.ndarray:
    """Geodesic distance between every two tokens, in radians.

    Parameters
    ----------
    x : array_like, shape (..., n, d)

    Returns
    -------
    ndarray, shape (..., n, n)
        Symmetric, zero on the diagonal.

    Raises
    ------
    ValueError
        If `x` is not an array of unit tokens.
    """
    x = checks.tokens("x", x)
    return sphere.distance(x[..., :, None, :], x[..., None, :, :])


def diameter(x) -> np.ndarray:
    """Largest geodesic distance between two tokens, in [0, pi].

    Parameters
    ----------
    x : array_like, shape (..., n, d)

    Returns
    -------
    ndarray, shape (...)

    Raises
    ------
    ValueError
        If `x` is not an array of unit tokens.
    """
    x = checks.tokens("x", x)
    largest = np.zeros(x.shape[:-2])
    for k in range(1, x.shape[-2]):  # row by row: no n x n x d array
        largest = np.maximum(largest, sphere.distance(x[..., k : k + 1, :], x[..., :k, :]).max(axis=-1))
    return largest


def clusters(x, radius: float) -> np.ndarray:
    """Cluster of every token: chains of tokens at distance <= `radius` hang together.

    (Connected components of the neighbourhood graph, that is, single linkage.)
    Clusters are numbered by their first token, their *leader*: token 0 is in
    cluster 0.

    Parameters
    ----------
    x : array_like, shape (..., n, d)
    radius : float
        In radians, > 0.

    Returns
    -------
    ndarray of int, shape (..., n)

    Raises
    ------
    ValueError
        If `x` is not an array of unit tokens or `radius` is not positive.

    Notes
    -----
    This looks at one moment.  Two clusters that cross in transit count as one while
    they do.
    """
    x, radius = checks.tokens("x", x), checks.positive("radius", radius)
    labels = np.empty(x.shape[:-1], dtype=int)
    for i in np.ndindex(x.shape[:-2]):
        _, raw = connected_components(csr_array(distances(x[i]) <= radius), directed=False)
        _, first, inverse = np.unique(raw, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=int)
        rank[np.argsort(first)] = np.arange(len(first))
        labels[i] = rank[inverse]
    return labels


def number_of_clusters(x, radius: float) -> np.ndarray:
    """How many clusters there are; arguments and errors as for :func:`clusters`.

    Returns
    -------
    ndarray of int, shape (...)
    """
    return clusters(x, radius).max(axis=-1) + 1


def leaders(labels) -> np.ndarray:
    """Index of the first token of each cluster, in order.

    Parameters
    ----------
    labels : array_like of int, shape (n,)
        As :func:`clusters` returns them for one sequence.

    Returns
    -------
    ndarray of int, shape (number of clusters,)

    Raises
    ------
    ValueError
        If `labels` is not a non-empty list of whole numbers.
    """
    checks.array("labels", labels)
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0 or labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be a non-empty list of whole numbers, got {labels!r}")
    return np.sort(np.unique(labels, return_index=True)[1])


def collapse_time(t, x, radius: float) -> np.ndarray:
    """First time from which on the diameter stays <= `radius`.

    Parameters
    ----------
    t : array_like, shape (T,)
        Times.
    x : array_like, shape (T, ..., n, d)
        Tokens at these times.
    radius : float
        In radians, > 0.

    Returns
    -------
    ndarray, shape (...)
        One of the times `t`, with no interpolation; infinite if the tokens are not
        that close at the last time.

    Raises
    ------
    ValueError
        If an argument breaks its rule or `t` and `x` differ in length.
    """
    t, x = checks.times(t), checks.tokens("x", x)
    radius = checks.positive("radius", radius)
    if x.ndim < 3 or x.shape[0] != len(t):
        raise ValueError(f"x must have shape ({len(t)}, ..., n, d) for {len(t)} times, got shape {x.shape}")
    apart = diameter(x) > radius
    # Index after the last time at which the tokens were still apart.
    after = len(t) - np.argmax(apart[::-1], axis=0)
    after = np.where(apart.any(axis=0), after, 0)
    return np.append(t, np.inf)[after]


def distance_to_subspace(x, basis) -> np.ndarray:
    """Geodesic distance of points from the sphere inside a linear subspace.

    Parameters
    ----------
    x : array_like, shape (..., d)
        Unit vectors.
    basis : array_like, shape (d, m)
        Orthonormal columns that span the subspace, 1 <= m <= d.

    Returns
    -------
    ndarray, shape (...)
        In [0, pi/2].  Relative accuracy is kept down to the rounding of `x`.

    Raises
    ------
    ValueError
        If the shapes do not fit or the columns are not orthonormal within 1e-10.
    """
    x, basis = checks.vectors("x", x), checks.array("basis", basis)
    if basis.ndim != 2 or basis.shape[0] != x.shape[-1] or not 1 <= basis.shape[1] <= basis.shape[0]:
        raise ValueError(f"basis must have shape ({x.shape[-1]}, m) with 1 <= m <= d, got shape {basis.shape}")
    if np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() > 1e-10:
        raise ValueError(f"basis must have orthonormal columns, got the Gram matrix {basis.T @ basis}")
    # The complement's coordinates, not x minus its projection: no cancellation.
    full, _ = np.linalg.qr(basis, mode="complete")
    coordinates = x @ full
    m = basis.shape[1]
    return np.arctan2(np.linalg.norm(coordinates[..., m:], axis=-1), np.linalg.norm(coordinates[..., :m], axis=-1))
