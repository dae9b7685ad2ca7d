"""Geometry of the unit sphere S^{d-1} in R^d.

Points are unit vectors along the last axis, shape (..., d).  All functions
broadcast over the leading axes.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betainc

from . import checks

__all__ = ["angle", "cap_measure", "circle", "distance", "normalise", "project", "uniform"]


def normalise(x) -> np.ndarray:
    """Unit vectors x/|x|.

    Scaled first, so that entries near 1e300 or 1e-300 neither overflow nor vanish.

    Parameters
    ----------
    x : array_like, shape (..., d)
        Finite vectors, none of them zero.

    Returns
    -------
    ndarray, shape (..., d)

    Raises
    ------
    ValueError
        If a vector is zero or has a NaN or infinite entry.
    """
    x = checks.vectors("x", x, unit=False)
    largest = np.max(np.abs(x), axis=-1, keepdims=True) if x.size else np.ones_like(x[..., :1])
    if np.any(largest == 0):
        where = tuple(int(i) for i in np.argwhere(largest[..., 0] == 0)[0])
        raise ValueError(f"x must have no zero vector, got one at index {where}")
    # A power of two scales without rounding.
    y = np.ldexp(x, -np.frexp(largest)[1])
    return y / np.linalg.norm(y, axis=-1, keepdims=True)


def project(x, y) -> np.ndarray:
    """Tangent part P_x y = y - <x, y> x of `y` at the point `x`.

    Parameters
    ----------
    x : array_like, shape (..., d)
        Points on the sphere.
    y : array_like, shape (..., d)
        Any vectors.

    Returns
    -------
    ndarray, shape (..., d)

    Raises
    ------
    ValueError
        If the dimensions differ, `x` is not unit, or an entry is not finite.
    """
    x, y = _pair(x, y, unit_second=False)
    return y - np.sum(x * y, axis=-1, keepdims=True) * x


def distance(x, y) -> np.ndarray:
    """Geodesic distance (the angle) between points, in [0, pi] radians.

    Computed as 2 atan2(|x-y|, |x+y|).  The textbook arccos <x, y> loses half of
    all digits near 0 and near pi: at a separation of 1e-9 it reads 0.

    Parameters
    ----------
    x, y : array_like, shape (..., d)
        Points on the sphere.

    Returns
    -------
    ndarray, shape (...)
        Absolute error about 1e-16; also relative to the distance where the points
        are nearly equal.

    Raises
    ------
    ValueError
        If the dimensions differ or the points are not unit vectors.
    """
    x, y = _pair(x, y)
    return 2 * np.arctan2(np.linalg.norm(x - y, axis=-1), np.linalg.norm(x + y, axis=-1))


def uniform(n: int, d: int, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> np.ndarray:
    """Independent uniform points on S^{d-1}.

    Parameters
    ----------
    n : int
        Tokens in one sequence, >= 1.
    d : int
        Dimension of the ambient space, >= 1.
    rng : numpy.random.Generator
        The source of randomness.
    batch : tuple of int
        Leading axes.

    Returns
    -------
    ndarray, shape (*batch, n, d)

    Raises
    ------
    ValueError
        If `n`, `d` or `batch` is not whole and positive or `rng` is no Generator.
    """
    n, d = checks.whole("n", n), checks.whole("d", d)
    batch = tuple(checks.whole("batch", b) for b in np.atleast_1d(np.asarray(batch, dtype=object)))
    # The direction of a Gaussian vector is uniform.
    return normalise(checks.generator(rng).standard_normal((*batch, n, d)))


def cap_measure(delta, d: int) -> np.ndarray:
    """Share of the sphere S^{d-1} within geodesic distance `delta` of a point.

    The regularised incomplete beta function I_s(a, a) with a = (d-1)/2 and
    s = sin²(delta/2), valid up to delta = pi without a case distinction: delta/pi
    on the circle, sin²(delta/2) on the sphere in R³.

    Parameters
    ----------
    delta : array_like
        Radius of the cap in radians, in [0, pi].
    d : int
        Dimension of the ambient space, >= 1.  For d = 1 the sphere is two points.

    Returns
    -------
    ndarray
        In [0, 1], the shape of `delta`.

    Raises
    ------
    ValueError
        If `delta` is outside [0, pi] or `d` < 1.

    References
    ----------
    Li, "Concise formulas for the area and volume of a hyperspherical cap",
    Asian J. Math. Stat. 4 (2011).
    """
    delta, d = checks.array("delta", delta), checks.whole("d", d)
    if np.any((delta < 0) | (delta > np.pi)):
        raise ValueError(f"delta must be in [0, pi], got {delta.min()} to {delta.max()}")
    if d == 1:
        return np.where(delta == np.pi, 1.0, 0.5)
    a = (d - 1) / 2
    # betainc is accurate near 0; near 1 the complement is.
    lower = betainc(a, a, np.sin(delta / 2) ** 2)
    upper = 1 - betainc(a, a, np.cos(delta / 2) ** 2)
    return np.where(delta <= np.pi / 2, lower, upper)


def circle(phi) -> np.ndarray:
    """Points (cos phi, sin phi) on the circle, shape (..., 2), for angles of shape (...)."""
    phi = checks.array("phi", phi)
    return np.stack([np.cos(phi), np.sin(phi)], axis=-1)


def angle(x) -> np.ndarray:
    """Angles in (-pi, pi] of points on the circle: the inverse of :func:`circle`.

    Raises
    ------
    ValueError
        If `x` has not shape (..., 2) or is not unit.
    """
    x = checks.vectors("x", x)
    if x.shape[-1] != 2:
        raise ValueError(f"x must have shape (..., 2), got shape {x.shape}")
    return np.arctan2(x[..., 1] + 0.0, x[..., 0])  # + 0.0 turns -0.0, hence the angle -pi, around


def _pair(x, y, *, unit_second: bool = True) -> tuple[np.ndarray, np.ndarray]:
    x, y = checks.vectors("x", x), checks.vectors("y", y, unit=unit_second)
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(f"y must have the dimension of x, got shapes {x.shape} and {y.shape}")
    checks.broadcast(("x", x.shape[:-1]), ("y", y.shape[:-1]))
    return x, y
