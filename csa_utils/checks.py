"""What every public function asks of its arguments.

Each check returns the argument as a float64 array (or float), or raises a
``ValueError`` that names the argument, the rule and the value received.  Checks
stand at public doors only, never inside the loop over time steps.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = [
    "UNIT_TOLERANCE",
    "array",
    "inverse_temperature",
    "matrix",
    "number",
    "positive",
    "times",
    "tokens",
    "vectors",
    "whole",
]

#: How far the norm of a token may be from 1.  Rounding leaves about 4e-16.
UNIT_TOLERANCE = 1e-12


def _excerpt(value) -> str:
    """The value as text, cut to a readable length."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 120 else text[:117] + "..."


def array(name: str, value) -> np.ndarray:
    """Any array of finite real numbers, as float64.

    Raises
    ------
    ValueError
        If `value` is ragged, not numeric, complex, or has a NaN or infinite entry.
    """
    try:
        a = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be an array of numbers, got {_excerpt(value)}") from error
    if a.dtype.kind not in "iuf":
        raise ValueError(f"{name} must hold real numbers, got dtype {a.dtype}: {_excerpt(value)}")
    a = a.astype(np.float64, copy=False)
    if not np.all(np.isfinite(a)):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(a))[0])
        raise ValueError(f"{name} must be finite, got {a[where]} at index {where}")
    return a


def vectors(name: str, value, *, unit: bool = True) -> np.ndarray:
    """Vectors along the last axis, shape (..., d) with d >= 1.

    Parameters
    ----------
    unit : bool
        Ask for norm 1 within `UNIT_TOLERANCE`.
    """
    a = array(name, value)
    if a.ndim < 1 or a.shape[-1] < 1:
        raise ValueError(f"{name} must have shape (..., d) with d >= 1, got shape {a.shape}")
    if unit and a.size:
        with np.errstate(over="ignore"):
            norm = np.sqrt(np.einsum("...i,...i->...", a, a))
        error = np.abs(norm - 1)
        if error.max() > UNIT_TOLERANCE:
            where = tuple(int(i) for i in np.unravel_index(error.argmax(), error.shape))
            raise ValueError(
                f"{name} must be unit vectors (norm 1 within {UNIT_TOLERANCE:g}; see csa_utils.sphere.normalise), "
                f"got norm {norm[where]!s} at index {where}"
            )
    return a


def tokens(name: str, value, *, unit: bool = True) -> np.ndarray:
    """Tokens, shape (..., n, d) with n >= 1 and d >= 1, rows of norm 1."""
    a = vectors(name, value, unit=False)
    if a.ndim < 2 or a.size == 0:
        raise ValueError(f"{name} must have shape (..., n, d) with at least one token, got shape {a.shape}")
    return vectors(name, a, unit=unit)


def matrix(name: str, value, d: int | None = None) -> np.ndarray:
    """Square matrices, shape (..., d, d).

    Parameters
    ----------
    d : int, optional
        The dimension the matrix has to have.
    """
    a = array(name, value)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] < 1:
        raise ValueError(f"{name} must be square, shape (..., d, d), got shape {a.shape}")
    if d is not None and a.shape[-1] != d:
        raise ValueError(f"{name} must be {d} x {d} to act on tokens in dimension {d}, got shape {a.shape}")
    return a


def inverse_temperature(value, name: str = "beta") -> np.ndarray:
    """An inverse temperature, finite and >= 0; a scalar or an array over batch axes."""
    a = array(name, value)
    if a.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {a.shape}")
    if np.any(a < 0):
        raise ValueError(f"{name} must be >= 0, got {_excerpt(value)}")
    return a


def times(value, name: str = "t") -> np.ndarray:
    """Times, shape (T,) with T >= 1: non-negative and strictly increasing."""
    a = array(name, value)
    if a.ndim != 1 or a.size == 0:
        raise ValueError(f"{name} must be a non-empty list of times, got shape {a.shape}: {_excerpt(value)}")
    if a[0] < 0:
        raise ValueError(f"{name} must be >= 0, got {a[0]} at index 0")
    if np.any(np.diff(a) <= 0):
        i = int(np.argmax(np.diff(a) <= 0))
        raise ValueError(f"{name} must be strictly increasing, got {a[i]} then {a[i + 1]} at index {i}")
    return a


def number(name: str, value) -> float:
    """A finite number."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError(f"{name} must be a number, got {_excerpt(value)}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def positive(name: str, value) -> float:
    """A finite number > 0."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError(f"{name} must be a positive number, got {_excerpt(value)}")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and > 0, got {value!r}")
    return float(value)


def whole(name: str, value, least: int = 1) -> int:
    """A whole number >= `least`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ValueError(f"{name} must be a whole number, got {_excerpt(value)}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    return int(value)


def generator(value, name: str = "rng") -> np.random.Generator:
    """A numpy random Generator, passed explicitly so that a seed means something."""
    if not isinstance(value, np.random.Generator):
        raise ValueError(f"{name} must be a numpy Generator such as numpy.random.default_rng(0), got {_excerpt(value)}")
    return value


def broadcast(first: tuple[str, tuple], second: tuple[str, tuple]) -> tuple:
    """The common shape of two named batch shapes.

    Raises
    ------
    ValueError
        If they do not broadcast.
    """
    try:
        return np.broadcast_shapes(first[1], second[1])
    except ValueError as error:
        raise ValueError(
            f"{second[0]} must have batch axes that fit those of {first[0]}, got {second[1]} and {first[1]}"
        ) from error
