"""What the compiled solvers are given: a field as compiled functions, and when to stop.

Nothing here knows attention.  A problem is a handful of compiled functions and two
opaque tuples of arrays that they share, `system` (the parameters) and `work` (storage
for a linearisation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np

from .. import checks

__all__ = ["Meeting", "Problem"]

MATRIX = numba.types.Array(numba.float64, 2, "C")
VECTOR = numba.types.Array(numba.float64, 1, "C")


@dataclass(frozen=True, eq=False)
class Problem:
    """A field on a product of spheres, compiled.  Called with tokens it is a plain field.

    Attributes
    ----------
    n, d : int
        Tokens and their dimension.
    system : tuple of ndarray
        Parameters, passed on to every function.
    velocity : compiled function (x, system, out)
        The tangent velocity (n, d) at unit tokens x (n, d).
    rate : float
        The fastest rate there can be, about; the first step is a fraction of 1 / rate.
    linearise, solve : compiled functions, optional
        For linearly implicit steps, in displacements u_k orthogonal to the unit tokens
        x_k: vectors (n, d), on the circle numbers (n, 1) along (-x_2, x_1).
        ``linearise(x, system, work, f)`` stores the Jacobian J of the displacements'
        velocity at u = 0, and that velocity in f;
        ``solve(step, fresh, system, work, r)`` solves (I - step J) u = r in place.
    work : function (n) -> tuple of ndarray, optional
        Makes the storage for n tokens; for n = 0 if nothing is to be stored.
    """

    n: int
    d: int
    system: tuple
    velocity: Callable
    rate: float
    linearise: Callable | None = None
    solve: Callable | None = None
    work: Callable[[int], tuple] = lambda n: (np.empty((0, 0)),)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        out = np.empty((self.n, self.d))
        self.velocity(np.ascontiguousarray(x), self.system, out)
        return out

    @cached_property
    def system_type(self) -> numba.types.Type:
        """Numba's type of `system`."""
        return numba.typeof(self.system)


@dataclass(frozen=True, eq=False)
class Meeting:
    """An event: the first time when every pair of tokens named is within `radius`.

    One pair makes a merge; the pairs (0, k) for all k make a collapse onto the first
    token (:meth:`collapse`).

    Parameters
    ----------
    pairs : array_like of int, shape (P, 2)
        Indices of tokens, counted from 0.
    radius : float
        Geodesic distance in radians, in (0, pi).
    stop : bool
        End the run when it happens.
    name : str
    """

    pairs: np.ndarray
    radius: float
    stop: bool = False
    name: str = "meeting"

    def __post_init__(self) -> None:
        checks.array("pairs", self.pairs)
        pairs = np.array(self.pairs)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or len(pairs) == 0 or pairs.dtype.kind not in "iu":
            raise ValueError(f"pairs must be whole numbers of shape (P, 2) with P >= 1, got {self.pairs!r}")
        if pairs.min() < 0:
            raise ValueError(f"pairs must hold indices >= 0, got {pairs.min()}")
        radius = checks.positive("radius", self.radius)
        if radius >= np.pi:
            raise ValueError(f"radius must be below pi, got {radius}")
        if not isinstance(self.stop, (bool, np.bool_)):
            raise ValueError(f"stop must be True or False, got {self.stop!r}")
        pairs = pairs.astype(np.int64)
        pairs.flags.writeable = False
        object.__setattr__(self, "pairs", pairs)
        object.__setattr__(self, "radius", radius)

    @classmethod
    def collapse(cls, n: int, radius: float = 1e-3, stop: bool = True) -> Meeting:
        """All of `n` tokens within `radius` of the first."""
        n = checks.whole("n", n, least=2)
        return cls(np.stack([np.zeros(n - 1, int), np.arange(1, n)], axis=1), radius, stop, "collapse")

    @classmethod
    def merge(cls, first: int, second: int, radius: float, stop: bool = False) -> Meeting:
        """Two tokens within `radius` of each other."""
        return cls([[first, second]], radius, stop, f"merge of {first} and {second}")

    def gap(self, x: np.ndarray) -> np.ndarray:
        """Largest chord of the pairs minus the chord of `radius`; <= 0 once it has happened."""
        chords = np.linalg.norm(x[..., self.pairs[:, 0], :] - x[..., self.pairs[:, 1], :], axis=-1)
        return chords.max(axis=-1) - 2 * np.sin(self.radius / 2)


def event_arrays(events: tuple[Meeting, ...], n: int) -> tuple:
    """Events for a compiled loop: pairs, where each event's begin, chords, stop flags."""
    for event in events:
        if not isinstance(event, Meeting):
            raise ValueError(f"events must be Meetings, got {event!r}")
        if event.pairs.max() >= n:
            raise ValueError(f"events must name tokens below n = {n}, got {event.pairs.max()}")
    pairs = np.concatenate([e.pairs for e in events]) if events else np.empty((0, 2), np.int64)
    begin = np.cumsum([0] + [len(e.pairs) for e in events]).astype(np.int64)
    chords = np.array([2 * np.sin(e.radius / 2) for e in events], dtype=float)
    return np.ascontiguousarray(pairs), begin, chords, np.array([e.stop for e in events], dtype=bool)
