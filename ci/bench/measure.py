"""Time several works in turn, and what their times say.

Works are timed A B A B ...: a machine that slows down for a while slows both, and a
ratio is taken within each pair.  The first call of each work is never timed, so
that nothing is compiled inside a measurement.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

__all__ = ["Rule", "Work", "interleave", "ratios", "summary"]


@dataclass(frozen=True)
class Rule:
    """When to stop.

    Attributes
    ----------
    rounds : int
        Fewest rounds, unless `patience` ends first.
    seconds : float
        Shortest time for all rounds together.
    most : int
        Most rounds.
    patience : float
        After this time, in seconds, `fewest` rounds are enough: for works that take a minute.
    fewest : int
        Fewest rounds of any measurement.
    """

    rounds: int = 7
    seconds: float = 2.0
    most: int = 51
    patience: float = 60.0
    fewest: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.rounds <= self.most:
            raise ValueError(f"a rule must have 1 <= fewest <= rounds <= most, got {self}")

    def enough(self, rounds: int, seconds: float) -> bool:
        """Whether so many rounds, which took so long, are enough."""
        if rounds >= self.most:
            return True
        if rounds < self.rounds:
            return rounds >= self.fewest and seconds >= self.patience
        return seconds >= self.seconds

    def as_dict(self) -> dict:
        """The rule for the record."""
        return asdict(self)


@dataclass(frozen=True)
class Work:
    """Something to be timed.

    Attributes
    ----------
    call : callable
        Does it, and returns the result.
    steps_timed, steps_in_run : int or None
        Where a run is too long, only some of its equal steps are timed, and the cost
        of the run is scaled up from them.  None if everything is timed.
    """

    call: Callable[[], object]
    steps_timed: int | None = None
    steps_in_run: int | None = None

    @property
    def scale(self) -> float:
        """Cost of the whole over the cost that is timed."""
        return 1.0 if self.steps_timed is None else self.steps_in_run / self.steps_timed


def interleave(
    works: Mapping[str, Callable[[], object]], rule: Rule, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Call every work once unmeasured, then all of them in turn, again and again.

    Parameters
    ----------
    works : mapping of str to callable
        What is timed, in the order in which it is called.
    rule : Rule
        When to stop.
    clock : callable
        Seconds since some moment.

    Returns
    -------
    dict of str to list of float
        Seconds of each call: as many for each work, one from each round.
    """
    for call in works.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in works}
    rounds, collecting = 0, gc.isenabled()
    gc.freeze()  # what is there already need not be looked through in each round
    start = clock()
    try:
        while not rule.enough(rounds, clock() - start):
            gc.collect()
            gc.disable()  # no collection inside a measurement
            for name, call in works.items():
                begin = clock()
                call()
                times[name].append(_rounded(clock() - begin))
            rounds += 1
            if collecting:
                gc.enable()
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
    return times


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles.

    Parameters
    ----------
    values : sequence of float
        At least one.

    Returns
    -------
    dict
        ``median``, ``lower`` and ``upper`` (the quartiles).
    """
    if len(values) == 1:
        return dict.fromkeys(("median", "lower", "upper"), values[0])
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": statistics.median(values), "lower": lower, "upper": upper}


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Ratio of each pair of one round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def _rounded(seconds: float) -> float:
    """Five digits: more than any clock is worth, and readable in the file."""
    return float(f"{seconds:.4e}")
