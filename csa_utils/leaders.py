r"""The reduced model of long times: only the leaders of clusters move on their own.

Once tokens have clustered, all tokens of a cluster are where its first token, its
*leader*, is, and under the causal mask the leader feels earlier tokens only.  With s_l
the index of leader l and N_m(l) the number of tokens of cluster m before s_l, leaders
obey

.. math::

    \dot x_l = P_{x_l} \frac{V x_l + \sum_{m<l} N_m(l)\, e^{\beta (\langle Q x_l, K x_m \rangle
    - \langle Q x_l, K x_l \rangle)}\, V x_m}{1 + \sum_{m<l} N_m(l)\, e^{\beta (\langle Q x_l, K x_m \rangle
    - \langle Q x_l, K x_l \rangle)}},

(CSA) again, with multiplicities.  A dozen leaders stand for hundreds of tokens, so the
road to the last merge costs hardly anything.  The model goes beyond the paper; its error
is that of putting a cluster's tokens where its leader is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import checks, observables, sphere
from .attention import Dynamics
from .integrators import Meeting, Unfinished, integrate

__all__ = ["Leaders", "Merges", "meetings", "merges", "reduce", "simulate"]


@dataclass(frozen=True, eq=False)
class Leaders:
    """A clustered state, reduced to one token a cluster.

    Attributes
    ----------
    index : ndarray of int, shape (L,)
        Which token leads each cluster, counted from 0, increasing.
    labels : ndarray of int, shape (n,)
        The cluster of each token, 0 to L - 1.
    x : ndarray, shape (L, d)
        The leaders.
    counts : ndarray, shape (L, L)
        N_m(l): tokens of cluster m before leader l, for m < l; 1 on the diagonal and above
        it, where nothing looks.
    """

    index: np.ndarray
    labels: np.ndarray
    x: np.ndarray
    counts: np.ndarray

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, eq=False)
class Merges:
    """When each leader but the first met an earlier one.

    Attributes
    ----------
    time : ndarray, shape (L - 1,)
        Time of the first meeting of leaders 2..L with any earlier leader; NaN if none.
    into : ndarray of int, shape (L - 1,)
        Which leader it met, 0 to L - 2; -1 if none.
    end : float
        Time at which the run ended.
    x : ndarray, shape (L, d)
        Leaders at that time.
    steps, rejected : int
        Steps taken, and steps tried in vain.
    """

    time: np.ndarray
    into: np.ndarray
    end: float
    x: np.ndarray
    steps: int
    rejected: int


def reduce(x, radius: float) -> Leaders:
    """Leaders of a clustered state.

    Parameters
    ----------
    x : array_like, shape (n, d)
        Tokens, each within `radius` of the first token of its cluster.
    radius : float
        In radians, > 0; clusters are those of `csa_utils.observables.clusters`.

    Returns
    -------
    Leaders

    Raises
    ------
    ValueError
        If an argument breaks its rule or the state is not clustered: a chain of close
        tokens reaches farther from its first one than `radius`.
    """
    x = checks.tokens("x", x)
    if x.ndim != 2:
        raise ValueError(f"x must have shape (n, d), one sequence, got {x.shape}")
    labels = observables.clusters(x, radius)
    index = observables.leaders(labels)
    far = sphere.distance(x, x[index[labels]])
    if far.max() > radius:
        raise ValueError(
            f"x must be clustered, each token within radius = {radius:g} of the first of its cluster, "
            f"got token {far.argmax()} at {far.max():g}"
        )
    # How many tokens of each cluster come before each leader.
    before = np.cumsum(labels[:, None] == np.arange(len(index)), axis=0)[index]
    counts = np.where(np.tri(len(index), k=-1, dtype=bool), before, 1).astype(float)
    return Leaders(index=index, labels=labels, x=x[index].copy(), counts=counts)


def meetings(index: Sequence[int], radius: float) -> list[Meeting]:
    """Events for the meetings of every token in `index` with every earlier one.

    Parameters
    ----------
    index : sequence of int, length L
        Tokens, increasing: ``range(L)`` for a run of leaders, `Leaders.index` for a run of
        all tokens.
    radius : float
        In radians, in (0, pi).

    Returns
    -------
    list of Meeting
        L (L - 1) / 2 of them; :func:`merges` reads their times.

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    index = [checks.whole("index", i, least=0) for i in index]
    if any(a >= b for a, b in itertools.pairwise(index)):
        raise ValueError(f"index must be increasing, got {index}")
    return [Meeting.merge(index[m], index[k], radius) for k in range(1, len(index)) for m in range(k)]


def merges(times, number: int) -> tuple[np.ndarray, np.ndarray]:
    """First meeting of each leader with an earlier one.

    Parameters
    ----------
    times : array_like, shape (L (L - 1) / 2,)
        When the events of :func:`meetings` happened, NaN if they did not.
    number : int
        L, the number of leaders.

    Returns
    -------
    time : ndarray, shape (L - 1,)
    into : ndarray of int, shape (L - 1,)
        As in :class:`Merges`.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """
    number = checks.whole("number", number)
    times = np.asarray(times, dtype=float)
    if times.shape != (number * (number - 1) // 2,):
        raise ValueError(f"times must have shape ({number * (number - 1) // 2},), got {times.shape}")
    time, into = np.full(number - 1, np.nan), np.full(number - 1, -1)
    for k in range(1, number):
        row = times[k * (k - 1) // 2 : k * (k + 1) // 2]
        if not np.all(np.isnan(row)):
            into[k - 1] = np.nanargmin(row)
            time[k - 1] = row[into[k - 1]]
    return time, into


def simulate(
    leaders: Leaders, end: float = 1e300, *, Q=None, K=None, V=None, beta=1.0, radius=None, tol: float = 1e-6
) -> Merges:
    """Run the reduced model until one cluster is left, or until a time.

    Parameters
    ----------
    leaders : Leaders
    end : float
        Last time, > 0; the clustered state is time 0.
    Q, K, V : array_like, shape (d, d), optional
        The identity if left out.
    beta : float
        Inverse temperature, > 0.
    radius : float, optional
        Distance at which leaders have merged, in radians; 0.1 / sqrt(beta) if left out.
    tol : float
        Tolerance of the implicit method.

    Returns
    -------
    Merges

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    ArithmeticError
        If the solver fails.
    Unfinished
        On Ctrl-C; `partial` is the Merges so far.
    """
    if not isinstance(leaders, Leaders):
        raise ValueError(f"leaders must be Leaders, as reduce() makes them, got {leaders!r}")
    end = checks.positive("end", end)
    number, d = leaders.x.shape
    beta = checks.inverse_temperature(beta)
    if beta.ndim or beta == 0:
        raise ValueError(f"beta must be a single number > 0 here, got {beta}")
    dynamics = Dynamics(d, Q=Q, K=K, V=V, beta=beta)
    if dynamics.batch:
        raise ValueError(f"Q, K and V must have no batch axes here, got {dynamics.batch}")
    radius = checks.positive("radius", 0.1 / np.sqrt(beta) if radius is None else radius)
    if number == 1:
        return Merges(np.empty(0), np.empty(0, int), 0.0, leaders.x.copy(), 0, 0)
    last = Meeting.collapse(number, radius=radius, stop=True)
    problem = dynamics.problems(number, counts=leaders.counts)[0]

    def read(solution) -> Merges:
        time, into = merges(solution.events[:-1], number)
        return Merges(time, into, *solution.end, solution.steps, solution.rejected)

    try:
        events = [*meetings(range(number), radius), last]
        return read(integrate(problem, leaders.x, [end], "implicit", tol=tol, events=events))
    except Unfinished as interrupt:
        raise Unfinished([read(s) for s in interrupt.partial]) from None
