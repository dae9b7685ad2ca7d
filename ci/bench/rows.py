"""What is measured: the rows of the table and the series of the plots.

Starts, matrices and tolerances are fixed here, the same for both sides.  A row is
described without computing anything; `Row.prepare` makes its arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from ci.bench import engine, peers
from ci.bench.measure import Work
from ci.bench.record import judged
from csa_utils import sphere

__all__ = ["ROWS", "SERIES", "Line", "Row", "Series", "Trial"]

SEED = 0
TOLERANCES = {"rtol": 1e-6, "atol": 1e-8}
#: Two ways to compute the same field differ by rounding only.
SAME = 1e-12
#: When a run is compared with a reference: early enough that errors have not died out.
CHECK_TIME = 20.0
REFERENCE = {"method": "DOP853", "rtol": 1e-11, "atol": 1e-11}


@dataclass(frozen=True)
class Trial:
    """The two works of a row, ready to be timed, and what is checked afterwards."""

    own: Work
    peer: Work
    checks: Callable[[], list[dict]] = list


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes
    ----------
    id : str
    work, own, peer : str
        What is done, how we do it, how the other side does it.
    settings : dict
        Everything that a repetition needs.
    prepare : callable
        Returns the `Trial`.
    target : tuple of str and float, or None
        ``("at least", 9.0)``: the peer takes at least nine times as long.
    growth : bool
        Then ``own`` is the larger of two works of ours and the ratio is how much more
        it costs than the smaller one, ``peer``.
    """

    id: str
    work: str
    own: str
    peer: str
    settings: dict
    prepare: Callable[[], Trial]
    target: tuple[str, float] | None = None
    growth: bool = False

    def about(self) -> dict:
        """What the record says of it before it is measured."""
        target = None if self.target is None else dict(zip(("rule", "value"), self.target, strict=True))
        names = ("id", "work", "own", "peer", "settings", "growth")
        return {**{name: getattr(self, name) for name in names}, "target": target}


@dataclass(frozen=True)
class Line:
    """One line of a plot: a work for each value on the horizontal axis."""

    name: str
    role: str
    values: tuple[float, ...]
    prepare: Callable[[float], Work]


@dataclass(frozen=True)
class Series:
    """A plot: cost against a size."""

    id: str
    title: str
    across: str
    settings: dict
    lines: tuple[Line, ...]


def _error(a, b) -> float:
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))


# The field


def _field_input(n: int, d: int, batch: tuple[int, ...]):
    rng = np.random.default_rng(SEED)
    Q, K, V = rng.standard_normal((3, d, d)) / np.sqrt(d)
    return sphere.uniform(n, d, rng, batch), Q, K, V


def _field(n: int, d: int, batch: tuple[int, ...], beta: float, peer: str) -> Trial:
    given = (*_field_input(n, d, batch), beta)
    own, other = partial(engine.attention_field, *given), _field_peer(peer, given)
    return Trial(Work(own), Work(other), lambda: [judged("largest difference", _error(own(), other()), SAME)])


def _field_peer(peer: str, given) -> Callable[[], np.ndarray]:
    return partial(peers.numpy_field, *given) if peer == "numpy" else peers.torch_field(*given)


_FIELD_PEERS = {
    "numpy": "NumPy, dense masked softmax",
    "torch": "PyTorch, scaled_dot_product_attention, float64, CPU",
}


def _field_row(name: str, n: int, d: int, batch: tuple[int, ...], peer: str, least: float) -> Row:
    beta = 9.0
    many = f"{batch[0]} sequences of " if batch else ""
    return Row(
        id=f"field-{name}-{peer}",
        work=f"Velocity of {many}{n} tokens in dimension {d}",
        own="csa_utils.attention.field",
        peer=_FIELD_PEERS[peer],
        settings={"n": n, "d": d, "batch": list(batch), "beta": beta, "Q, K, V": "random", "seed": SEED},
        prepare=partial(_field, n, d, batch, beta, peer),
        target=("at least", least),
    )


# The field on the circle


def _angles(n: int) -> np.ndarray:
    return np.random.default_rng(SEED).uniform(0, 2 * np.pi, n)


def _circle(n: int, beta: float) -> Trial:
    phi = _angles(n)
    fourier, dense = (partial(engine.circle_field, phi, beta, method) for method in ("fourier", "dense"))
    return Trial(
        Work(fourier),
        Work(dense),
        lambda: [judged("largest difference", _error(fourier(), dense()), 1e-14)],
    )


def _circle_growth(large: int, small: int, beta: float) -> Trial:
    return Trial(*(Work(partial(engine.circle_field, _angles(n), beta, "fourier")) for n in (large, small)))


def _circle_row(n: int, least: float) -> Row:
    return Row(
        id=f"circle-{n}",
        work=f"Velocity of {n} tokens on the circle",
        own="csa_utils.circle.field, Fourier",
        peer="csa_utils.circle.field, dense",
        settings={"n": n, "beta": 64.0, "Q, K, V": "identity", "seed": SEED},
        prepare=partial(_circle, n, 64.0),
        target=("at least", least),
    )


# Whole runs

_FIGURES = {
    1: {"n": 32, "d": 3, "beta": 9.0, "T": 5000.0},
    2: {"n": 200, "d": 2, "beta": 64.0, "T": 150.0},
}


def _start(n: int, d: int) -> np.ndarray:
    return sphere.uniform(n, d, np.random.default_rng(SEED))


@cache
def _reference(figure: int) -> np.ndarray:
    system = _FIGURES[figure]
    return peers.scipy_run(_start(system["n"], system["d"]), CHECK_TIME, system["beta"], **REFERENCE)


def _figure(figure: int, peer: str) -> Trial:
    system = _FIGURES[figure]
    x0, beta = _start(system["n"], system["d"]), system["beta"]
    other = {t: _run_peer(peer, x0, t, beta) for t in (system["T"], CHECK_TIME)}

    def checks() -> list[dict]:
        reference, at = _reference(figure), f"at T = {CHECK_TIME:g}"
        return [
            judged(f"error of ours {at}", _error(engine.run(x0, CHECK_TIME, beta), reference), 1e-4),
            # with a fixed step the peer is as wrong as it is; with tolerances it must be right
            judged(
                f"error of the other {at}",
                _error(other[CHECK_TIME](), reference),
                None if peer == "euler" else 1e-4,
            ),
        ]

    return Trial(Work(partial(engine.run, x0, system["T"], beta)), Work(other[system["T"]]), checks)


def _run_peer(peer: str, x0: np.ndarray, t: float, beta: float) -> Callable[[], np.ndarray]:
    if peer == "euler":
        return partial(peers.numpy_euler, x0, beta, round(t / peers.DT))
    if peer in ("RK45", "LSODA"):
        return partial(peers.scipy_run, x0, t, beta, peer, **TOLERANCES)
    return peers.diffrax_run(x0, t, beta, peer, **TOLERANCES)


_RUN_PEERS = {
    "euler": f"NumPy Euler script, step {peers.DT:g}",
    "RK45": "SciPy RK45 with the NumPy field",
    "LSODA": "SciPy LSODA with the NumPy field",
    "Tsit5": "diffrax Tsit5, compiled by JAX",
    "Kvaerno5": "diffrax Kvaerno5 (implicit), compiled by JAX",
}


def _run_row(figure: int, peer: str, least: float | None = None) -> Row:
    system = _FIGURES[figure]
    how = {"dt": peers.DT} if peer == "euler" else TOLERANCES
    return Row(
        id=f"figure-{figure}-{peer.lower()}",
        work="Run of Figure {}: {n} tokens, d = {d}, β = {beta:g}, to T = {T:g}".format(figure, **system),
        own="csa_utils.simulate",
        peer=_RUN_PEERS[peer],
        settings={**system, "Q, K, V": "identity", "seed": SEED, "own": engine.RUN, "peer": how},
        prepare=partial(_figure, figure, peer),
        target=None if least is None else ("at least", least),
    )


# Implicit steps and the end of time

STEP = 1.0
#: By then even a token opposite the first one has come: its time is of the order of e^{2 beta}.
END = 1e60


def _implicit(n: int) -> Trial:
    x = _start(n, 2)
    matrix = np.random.default_rng(SEED).standard_normal((n, n))
    return Trial(Work(partial(engine.implicit_step, x, 64.0, STEP)), Work(partial(peers.lu_factor, matrix)))


def _implicit_growth(large: int, small: int) -> Trial:
    return Trial(*(Work(partial(engine.implicit_step, _start(n, 2), 64.0, STEP)) for n in (large, small)))


def _collapse() -> Trial:
    x0 = _start(200, 2)
    phi0 = np.arctan2(x0[:, 1], x0[:, 0])
    own = partial(engine.collapse, x0, END, 64.0)
    other = partial(peers.lsoda_angles, phi0, END, 64.0, **TOLERANCES)

    def checks() -> list[dict]:
        phi = other()
        theirs = np.stack([np.cos(phi), np.sin(phi)], axis=-1)
        return [
            judged("ours, distance from the first token", _error(own(), x0[0]), 1e-6),
            judged("the other, distance from the first token", _error(theirs, x0[0])),
        ]

    return Trial(Work(own), Work(other), checks)


_STEP_SETTINGS = {"d": 2, "beta": 64.0, "step": STEP, "Q, K, V": "identity", "seed": SEED}

ROWS: tuple[Row, ...] = (
    _field_row("small", 200, 3, (64,), "numpy", 9.0),
    _field_row("small", 200, 3, (64,), "torch", 5.0),
    _field_row("large", 4000, 3, (), "numpy", 25.0),
    _field_row("large", 4000, 3, (), "torch", 3.0),
    _field_row("wide", 4000, 64, (), "torch", 1.5),
    _circle_row(10_000, 30.0),
    _circle_row(100_000, 300.0),
    Row(
        id="circle-growth",
        work="Velocity on the circle: ten times as many tokens",
        own="csa_utils.circle.field, 1000000 tokens",
        peer="csa_utils.circle.field, 100000 tokens",
        settings={"n": [1_000_000, 100_000], "beta": 64.0, "Q, K, V": "identity", "seed": SEED},
        prepare=partial(_circle_growth, 1_000_000, 100_000, 64.0),
        target=("at most", 12.0),
        growth=True,
    ),
    _run_row(1, "euler", 200.0),
    _run_row(2, "euler", 40.0),
    Row(
        id="implicit-step",
        work="One implicit step of 4000 tokens on the circle",
        own="csa_utils, implicit step",
        peer="scipy.linalg.lu_factor of a 4000 × 4000 matrix",
        settings={"n": 4000, **_STEP_SETTINGS},
        prepare=partial(_implicit, 4000),
        target=("at least", 3.0),
    ),
    Row(
        id="implicit-growth",
        work="One implicit step: twice as many tokens",
        own="csa_utils, implicit step of 4000 tokens",
        peer="csa_utils, implicit step of 2000 tokens",
        settings={"n": [4000, 2000], **_STEP_SETTINGS},
        prepare=partial(_implicit_growth, 4000, 2000),
        target=("at most", 5.0),
        growth=True,
    ),
    Row(
        id="collapse",
        work="200 tokens on the circle, β = 64, until all are one",
        own="csa_utils.simulate, implicit",
        peer="SciPy LSODA with a compiled field and Jacobian for angles",
        settings={"n": 200, "d": 2, "beta": 64.0, "T": END, "seed": SEED, "peer": TOLERANCES},
        prepare=_collapse,
        target=("at least", 1.0),
    ),
    *(_run_row(1, peer) for peer in ("RK45", "LSODA", "Tsit5", "Kvaerno5")),
    # not Kvaerno5: with 400 unknowns and a Jacobian for every step it takes minutes
    *(_run_row(2, peer) for peer in ("RK45", "LSODA", "Tsit5")),
)


# Series

_N = (100, 200, 500, 1000, 2000, 4000, 10_000, 20_000)
_BETA = (0.0, 1.0, 4.0, 16.0, 64.0, 250.0, 1000.0)
_T = (1.0, 1e1, 1e2, 1e3, 1e4, 1e6, 1e8, 1e10, 1e20, 1e30, 1e40, 1e50)
_CIRCLE_N = 10_000


def _field_work(peer: str, n: float) -> Work:
    given = (*_field_input(int(n), 3, ()), 9.0)
    return Work(partial(engine.attention_field, *given) if peer == "own" else _field_peer(peer, given))


def _circle_work(method: str, beta: float) -> Work:
    return Work(partial(engine.circle_field, _angles(_CIRCLE_N), beta, method))


def _horizon_own(t: float) -> Work:
    return Work(partial(engine.run, _start(32, 3), t, 9.0))


def _horizon_euler(t: float) -> Work:
    """All steps cost the same: of a long run only some are timed."""
    steps = round(t / peers.DT)
    timed = min(steps, 1000)
    return Work(
        partial(peers.numpy_euler, _start(32, 3), 9.0, timed),
        *((timed, steps) if timed < steps else ()),
    )


SERIES: tuple[Series, ...] = (
    Series(
        id="tokens",
        title="One velocity against the number of tokens",
        across="tokens n",
        settings={"d": 3, "beta": 9.0, "Q, K, V": "random", "seed": SEED},
        lines=(
            Line("csa_utils", "own", _N, partial(_field_work, "own")),
            Line("NumPy", "numpy", tuple(n for n in _N if n <= 4000), partial(_field_work, "numpy")),
            Line("PyTorch", "torch", _N, partial(_field_work, "torch")),
        ),
    ),
    Series(
        id="beta",
        title="One velocity on the circle against the inverse temperature",
        across="inverse temperature β",
        settings={"n": _CIRCLE_N, "Q, K, V": "identity", "seed": SEED},
        lines=(
            Line("csa_utils, Fourier", "own", _BETA, partial(_circle_work, "fourier")),
            Line("csa_utils, dense", "dense", _BETA, partial(_circle_work, "dense")),
        ),
    ),
    Series(
        id="horizon",
        title="A whole run against its length in time",
        across="time T at the end of the run",
        settings={
            "n": 32,
            "d": 3,
            "beta": 9.0,
            "Q, K, V": "identity",
            "seed": SEED,
            "own": engine.RUN,
            "peer": {"dt": peers.DT},
        },
        lines=(
            Line("csa_utils", "own", _T, _horizon_own),
            Line("NumPy Euler script", "numpy", (1.0, 1e1, 1e2, 1e3, 5e3), _horizon_euler),
        ),
    ),
)
