"""The dynamics in the reader's browser, against csa_utils."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.linalg import expm

from csa_utils import attention, observables, sphere
from csa_utils.exact import two_tokens
from csa_utils.simulate import simulate

pytestmark = pytest.mark.pages

READY = "window.csaPlayground !== undefined"

# A system and tokens as JSON, for the functions of dynamics.js
SYSTEM = """(g) => ({d: g.d, beta: g.beta, causal: g.causal,
    ...Object.fromEntries(["Q", "K", "V"].map(m => [m, Float64Array.from(g[m].flat())]))})"""


def rng(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def setting(name, d, n, beta, V=None, *, Q=None, K=None, causal=True, x=None):
    unit = np.eye(d)
    Q, K, V = (unit if m is None else np.asarray(m, dtype=float) for m in (Q, K, V))
    x = sphere.uniform(n, d, rng(name)) if x is None else x
    return SimpleNamespace(name=name, d=d, x=x, rules={"Q": Q, "K": K, "V": V, "beta": float(beta), "causal": causal})


def gaussian(name, d, count=1):
    return rng(name).normal(size=(count, d, d))


def settings() -> list[SimpleNamespace]:
    random = gaussian("random", 3, 3)
    pair = [[1, -2, 0], [2, 1, 0], [0, 0, 0.3]]
    decaying = [[-0.5, -2], [2, -0.5]]
    shear = [[1, 3, 0], [0, 0.5, -2], [0, 0, 0.2]]
    flip = np.diag([-1.0, 1.0])
    two = sphere.circle(np.deg2rad([0.0, 100.0]))
    return [
        setting("one token", 3, 1, 9, gaussian("one", 3)[0]),
        setting("V = I, sphere", 3, 40, 9),
        setting("V = I, circle, sharp", 2, 60, 64),
        setting("V = I, sphere, sharp, many", 3, 100, 64),
        setting("symmetric", 3, 30, 4, np.diag([1, 0.5, 0.2])),
        setting("symmetric, full", 3, 30, 4, np.diag([1, 0.5, 0.2]), causal=False),
        setting("V = -I", 3, 32, 9, -np.eye(3)),
        setting("V = -I, full", 2, 20, 9, -np.eye(2), causal=False),
        setting("shear", 3, 30, 1, shear),
        setting("shear, full", 3, 30, 1, shear, causal=False),
        setting("growing pair", 3, 20, 1, pair),
        setting("decaying pair", 2, 20, 9, decaying),
        setting("decaying pair, full", 2, 20, 9, decaying, causal=False),
        setting("random Q, K, V", 3, 50, 2, random[2], Q=random[0], K=random[1]),
        setting("random Q, K, V, full", 3, 50, 2, random[2], Q=random[0], K=random[1], causal=False),
        setting("random Q, K", 2, 40, 9, Q=gaussian("q", 2)[0], K=gaussian("k", 2)[0]),
        setting("equal weights", 2, 100, 0, np.diag([1.0, -1.0])),
        setting("equal weights, full", 3, 100, 0, causal=False),
        setting("counterexample", 2, 2, 9, np.diag([1, 0.5]), K=flip, x=two),
        setting("V = I, full, sharp", 3, 60, 64, causal=False),
    ]


SETTINGS = settings()


def as_json(case) -> dict:
    rules = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in case.rules.items()}
    return {"d": case.d, "x": case.x.tolist(), **rules}


def reference(case, t: float) -> np.ndarray:
    return simulate(case.x, [t], method="DOP853", rtol=1e-11, atol=1e-13, **case.rules).x[0]


def positions_at(tab, case, t: float) -> np.ndarray:
    tab.evaluate("g => csaPlayground.load(g)", as_json(case))
    return np.array(tab.evaluate("t => { csaPlayground.advance(t); return csaPlayground.positions(); }", t))


def test_positions_agree_with_the_library(lab):
    for case in SETTINGS:
        expected = reference(case, 5.0)
        error = np.abs(positions_at(lab, case, 5.0) - expected).max()
        # how far a start that is off by 1e-9 is carried: no setting here is so delicate
        # that agreement to 1e-6 would be a matter of luck
        nearby = sphere.normalise(case.x + 1e-9 * rng("nearby").normal(size=case.x.shape))
        moved = np.abs(simulate(nearby, [5.0], method="DOP853", rtol=1e-11, atol=1e-13, **case.rules).x[0] - expected)
        print(f"{case.name:28} error {error:.1e}, growth of a small error {moved.max() / 1e-9:.1e}")
        assert moved.max() < 1e-6, f"{case.name} is too delicate to be a test"
        assert error < 1e-6, case.name
    assert lab.errors == []


def test_field_and_jacobian_agree_with_the_library(lab):
    for case in SETTINGS:
        answer = lab.evaluate(
            f"""g => {{ const s = ({SYSTEM})(g), x = Float64Array.from(g.x.flat());
            return [[...csaDynamics.field(s, x)], s.causal ? [...csaDynamics.jacobian(s, x)] : []]; }}""",
            as_json(case),
        )
        field = attention.field(case.x, **case.rules)
        size = max(np.abs(case.rules["V"]).max(), np.abs(field).max())
        assert np.abs(np.reshape(answer[0], field.shape) - field).max() < 1e-13 * size, case.name
        if case.rules["causal"]:
            tangent = np.eye(case.d) - case.x[:, :, None] * case.x[:, None, :]
            J = np.einsum("kab,kbjc,jcd->kajd", tangent, attention.jacobian(case.x, **case.rules), tangent)
            assert np.abs(np.reshape(answer[1], J.shape) - J).max() < 1e-13 * np.abs(J).max(), case.name


@pytest.mark.parametrize(("method", "order"), [("implicit", 4), ("explicit", 5)])
def test_observed_order(lab, method, order):
    ask = f"""([g, steps, method]) => [...csaDynamics.fixedSteps(({SYSTEM})(g),
        Float64Array.from(g.x.flat()), 4, steps, method)]"""
    slopes = []
    for name in ("symmetric", "V = I, sphere", "growing pair"):
        case = next(c for c in SETTINGS if c.name == name)
        expected = reference(case, 4.0).ravel()
        steps = [round(2 ** (i / 2)) for i in range(4, 21)]
        errors = [np.abs(np.array(lab.evaluate(ask, [as_json(case), m, method])) - expected).max() for m in steps]
        # the four finest runs whose error is far above that of the reference
        fine = [(m, e) for m, e in zip(steps, errors, strict=True) if e > 3e-11][-4:]
        assert len(fine) == 4
        slopes.append(-np.polyfit(*np.log(fine).T, 1)[0])
    print(f"{method}: observed orders", *(f"{s:.2f}" for s in slopes))
    assert np.abs(np.array(slopes) - order).max() < 0.3


def test_tiny_forces_keep_their_digits(lab):
    # two far tokens: the force on the second is known to all digits
    for beta, angle in ((64.0, 3.0), (100.0, 2.5)):
        case = setting("far", 2, 2, beta, x=sphere.circle([0.0, angle]))
        force = lab.evaluate(
            f"g => [...csaDynamics.field(({SYSTEM})(g), Float64Array.from(g.x.flat()))]", as_json(case)
        )
        odds = np.exp(beta * (np.cos(angle) - 1))
        expected = odds / (1 + odds) * np.sin(angle)
        assert np.hypot(*force[2:]) == pytest.approx(expected, rel=1e-12)


def test_two_tokens_meet_when_the_exact_solution_says(lab):
    for beta, angle in ((1.0, 2.0), (9.0, 2.8), (20.0, 1.5)):
        x0 = sphere.circle([0.3, 0.3 + angle])
        case = setting("two", 2, 2, beta, x=x0)
        times = [1.0, 10.0, 1e4, 1e8, 1e12, 1e15]
        exact = two_tokens(x0, times, beta=beta)
        lab.evaluate("g => csaPlayground.load(g)", as_json(case))
        for t, expected in zip(times, exact, strict=True):
            got = np.array(lab.evaluate("t => { csaPlayground.advance(t); return csaPlayground.positions(); }", t))
            assert np.abs(got - expected).max() < 1e-6, (beta, t)


def test_the_first_token_follows_the_exponential(lab):
    case = next(c for c in SETTINGS if c.name == "growing pair")
    flow = expm(5 * case.rules["V"]) @ case.x[0]
    assert np.abs(positions_at(lab, case, 5.0)[0] - flow / np.linalg.norm(flow)).max() < 1e-6


def test_the_far_end_of_time(lab):
    case = setting("long", 2, 40, 64)
    lab.evaluate("g => csaPlayground.load(g)", as_json(case))
    for exponent in range(0, 81, 2):
        state = lab.evaluate("t => { csaPlayground.advance(t); return csaPlayground.state(); }", 10.0**exponent)
        if state["clusters"] == 1 and state["diameter"] < 1e-6:
            break
    x = np.array(lab.evaluate("csaPlayground.positions()"))
    assert state["clusters"] == 1
    assert observables.diameter(x) < 1e-6
    assert np.abs(x[0] - case.x[0]).max() < 1e-12
    assert state["t"] > 1e10
    print(f"one cluster by t = {state['t']:.0e} after {state['steps']} steps")
    assert lab.errors == []


def test_exponential(lab):
    z = np.concatenate([[0.0], -np.logspace(-12, np.log10(707), 4000)])
    got = np.array(lab.evaluate("z => z.map(csaDynamics.exp)", z.tolist()))
    assert np.abs(got / np.exp(z) - 1).max() < 5e-16 + 2**-52
    assert lab.evaluate("[csaDynamics.exp(-709), csaDynamics.exp(-1e300), csaDynamics.exp(-Infinity)]") == [0, 0, 0]


def test_centers_clusters_and_diameter(lab):
    for d, n, delta in ((2, 200, 0.5), (3, 150, 0.7), (3, 1, 1.0), (2, 50, np.pi)):
        x = sphere.uniform(n, d, rng(f"centers {d} {n}"))
        renyi, strong = [], []
        for k in range(n):
            distance = observables.distances(x[: k + 1])[-1]
            if all(distance[j] > delta for j in renyi):
                renyi.append(k)
            if (distance[:k] > delta).all():
                strong.append(k)
        got = lab.evaluate(
            "([x, d, delta]) => csaDynamics.centers(Float64Array.from(x.flat()), d, delta)", [x.tolist(), d, delta]
        )
        assert got == {"renyi": renyi, "strong": strong}
        for radius in (0.02, 0.1, 0.5):
            got = lab.evaluate(
                """([x, d, radius]) => { const c = csaDynamics.clusters(Float64Array.from(x.flat()), d, radius);
                return [...c.labels]; }""",
                [x.tolist(), d, radius],
            )
            assert got == observables.clusters(x, radius).tolist()
        got = lab.evaluate("([x, d]) => csaDynamics.diameter(Float64Array.from(x.flat()), d)", [x.tolist(), d])
        assert got == pytest.approx(observables.diameter(x), rel=1e-12)


def test_a_center_must_be_strictly_farther(lab):
    x = [1.0, 0.0, 0.0, 1.0]
    distance = lab.evaluate("x => csaDynamics.distance(Float64Array.from(x), 2, 0, 1)", x)
    assert distance == np.pi / 2
    ask = "([x, delta]) => csaDynamics.centers(Float64Array.from(x), 2, delta)"
    assert lab.evaluate(ask, [x, distance]) == {"renyi": [0], "strong": [0]}
    assert lab.evaluate(ask, [x, np.nextafter(distance, 0)]) == {"renyi": [0, 1], "strong": [0, 1]}


def test_random_starts(lab):
    for d in (2, 3):
        x = np.array(lab.evaluate("d => [...csaDynamics.uniformTokens(11, 4000, d)]", d)).reshape(-1, d)
        assert np.abs(np.linalg.norm(x, axis=1) - 1).max() < 1e-15
        assert np.abs(x.mean(axis=0)).max() < 5 / np.sqrt(d * 4000)
        assert np.abs(x.T @ x / 4000 - np.eye(d) / d).max() < 0.03
        short = np.array(lab.evaluate("d => [...csaDynamics.uniformTokens(11, 7, d)]", d)).reshape(-1, d)
        assert np.array_equal(short, x[:7])
    m = np.array(lab.evaluate("[1, 2, 3].map(s => [...csaDynamics.randomMatrix(s, 3, 1)])"))
    assert len(np.unique(m)) == m.size
    # the same bits in every browser: the first numbers of seed 0, which links rely on
    first = lab.evaluate("(() => { const draw = csaDynamics.random(0); return [draw(), draw()]; })()")
    assert first == [0.6991161463747979, 0.6936104753366232]


def test_newcomers_disturb_nobody(playground):
    tab, _ = playground()
    tab.evaluate("csaPlayground.load({d: 3, n: 30, beta: 9}); csaPlayground.advance(4)")
    before = tab.evaluate("csaPlayground.positions()")
    tab.fill("#csa-pg-n", "80")
    tab.press("#csa-pg-n", "Enter")
    after = tab.evaluate("csaPlayground.positions()")
    state = tab.evaluate("csaPlayground.state()")
    assert len(after) == 80
    assert state["t"] == 4
    assert after[:30] == before
    place = np.array(tab.evaluate("[...csaDynamics.uniformTokens(csaPlayground.state().seed, 80, 3)]")).reshape(80, 3)
    assert after[30:] == place[30:].tolist()
    # and as they move on, in equal steps, the same bits again
    case = setting("prefix", 3, 80, 9)
    ask = f"""([g, n]) => [...csaDynamics.fixedSteps(({SYSTEM})(g),
        Float64Array.from(g.x.slice(0, n).flat()), 2, 40)]"""
    few, many = (tab.evaluate(ask, [as_json(case), n]) for n in (30, 80))
    assert many[:90] == few
    # the control: without the mask they do disturb
    case.rules["causal"] = False
    few, many = (np.array(tab.evaluate(ask, [as_json(case), n])) for n in (30, 80))
    assert np.abs(many[:90] - few).max() > 1e-3


# Can the comparison fail?

SABOTAGE = {
    "the sign of V": (
        "const [Q, K, V] = [system.Q, system.K, system.V]",
        "system.V].map",
        "system.V.map(v => -v)].map",
    ),
    "the mask": ("causal: Boolean(causal)", "Boolean(causal)", "false"),
    "V transposed": ("b[3 * i + j] = a[i * d + j]", "a[i * d + j]", "a[j * d + i]"),
    "beta": ("B[3 * i + j] = beta *", "= beta *", "= 1.02 * beta *"),
}


@pytest.mark.parametrize("what", SABOTAGE)
def test_sabotage_is_noticed(playground, site, what):
    around, old, new = SABOTAGE[what]
    source = (site / "_static/playground/dynamics.js").read_text(encoding="utf8")
    assert around in source
    start = source.index(around)
    line = source[start : source.index("\n", start)]
    broken = source.replace(line, line.replace(old, new))
    assert broken != source
    tab, _ = playground()
    tab.route(re.compile(r"dynamics\.js"), lambda route: route.fulfill(body=broken, content_type="text/javascript"))
    tab.reload()
    tab.wait_for_function(READY)
    case = next(c for c in SETTINGS if c.name == "random Q, K, V")
    assert np.abs(positions_at(tab, case, 1.0) - reference(case, 1.0)).max() > 1e-3
