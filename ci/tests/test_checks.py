"""Every public function refuses every kind of bad argument, and says which and why."""

import re

import numpy as np
import pytest

from csa_utils import (
    attention,
    checks,
    circle,
    ensemble,
    exact,
    integrators,
    leaders,
    observables,
    simulate,
    spectrum,
    sphere,
)

RNG = np.random.default_rng(0)
POINT = sphere.uniform(1, 3, RNG)[0]
TOKENS = sphere.uniform(4, 3, RNG)
MATRIX = RNG.standard_normal((3, 3))
PLANE = np.eye(3)[:, :2]

X, T = ("tokens", TOKENS), ("times", [0.0, 1.0])
PARAMETERS = dict.fromkeys("QKV", ("matrix of 3", MATRIX)) | {
    "beta": ("beta", 2.0),
    "causal": ("flag", True),
}
FROZEN = {"frozen": ("tokens", TOKENS[:2])}
TOL = {"method": ("method", "implicit"), "tol": ("tolerance", 1e-6)}
SOLVER = {"method": ("method", "rk4"), "dt": ("positive", 0.5)}
TOLERANCES = {"method": ("method", "RK45"), "rtol": ("tolerance", 1e-6), "atol": ("tolerance", 1e-6)}
WITHOUT_V = {name: PARAMETERS[name] for name in ("Q", "K", "beta", "causal")}
TWO = {"x0": ("tokens", TOKENS[:2]), "t": T} | {name: PARAMETERS[name] for name in ("Q", "K", "beta")}

PROBLEM = attention.Dynamics(3).problems(4)[0]
LEADERS = leaders.reduce(TOKENS, 0.01)

# A door: the function, and for each argument what it is and a value that is accepted.
DOORS = [
    (sphere.normalise, {"x": ("vectors", POINT)}),
    (sphere.project, {"x": ("points", POINT), "y": ("vectors of 3", POINT)}),
    (sphere.distance, {"x": ("points", POINT), "y": ("points of 3", POINT)}),
    (
        sphere.uniform,
        {"n": ("whole", 2), "d": ("whole", 2), "rng": ("generator", RNG), "batch": ("whole", 2)},
    ),
    (sphere.cap_measure, {"delta": ("array", 1.0), "d": ("whole", 3)}),
    (sphere.circle, {"phi": ("array", [0.0, 1.0])}),
    (sphere.angle, {"x": ("points", [1.0, 0.0])}),
    (spectrum.leading, {"V": ("matrix", MATRIX), "tol": ("positive", 1e-8)}),
    (attention.Dynamics, {"d": ("whole", 3)} | PARAMETERS),
    (attention.Dynamics(3).check, {"x": X}),
    (attention.weights, {"x": X} | WITHOUT_V),
    (attention.output, {"x": X} | PARAMETERS),
    (attention.field, {"x": X} | PARAMETERS),
    (attention.jacobian, {"x": X} | PARAMETERS),
    (integrators.integrate, {"field": ("field", np.zeros_like), "x0": X, "t": T} | SOLVER),
    (integrators.integrate, {"field": ("field", np.zeros_like), "x0": X, "t": T} | TOLERANCES),
    (simulate.simulate, {"x0": X, "t": T} | PARAMETERS | SOLVER),
    (simulate.simulate, {"x0": X, "t": T} | TOLERANCES),
    (simulate.simulate, {"x0": X, "t": T} | TOL | FROZEN),
    (attention.field, {"x": X} | FROZEN),
    (integrators.integrate, {"field": ("field", PROBLEM), "x0": X, "t": T} | TOL),
    (
        circle.field,
        {"phi": ("array", [0.0, 1.0]), "beta": ("beta", 2.0), "causal": ("flag", True), "method": ("method", "dense")},
    ),
    (circle.coefficients, {"beta": ("beta", 2.0), "error": ("positive", 1e-9)}),
    (leaders.reduce, {"x": X, "radius": ("positive", 0.1)}),
    (leaders.meetings, {"index": ("index", [0, 3]), "radius": ("positive", 0.1)}),
    (leaders.merges, {"times": ("any times", [1.0]), "number": ("whole", 2)}),
    (
        leaders.simulate,
        {
            "leaders": ("leaders", LEADERS),
            "end": ("positive", 10.0),
            "beta": ("beta", 2.0),
            "radius": ("positive", 0.1),
            "tol": ("tolerance", 1e-6),
        },
    ),
    (observables.distances, {"x": X}),
    (observables.diameter, {"x": X}),
    (observables.clusters, {"x": X, "radius": ("positive", 0.1)}),
    (observables.number_of_clusters, {"x": X, "radius": ("positive", 0.1)}),
    (observables.leaders, {"labels": ("labels", [0, 1, 0])}),
    (
        observables.collapse_time,
        {"t": T, "x": ("tokens", TOKENS.reshape(2, 2, 3)), "radius": ("positive", 0.1)},
    ),
    (observables.distance_to_subspace, {"x": ("points", POINT), "basis": ("basis", PLANE)}),
    (exact.first_token, {"x0": ("points", POINT), "V": ("matrix of 3", MATRIX), "t": T}),
    (exact.two_tokens, TWO),
]

NOT_NUMBERS = {
    "a string": ("one", "one"),
    "complex": (np.array([1j, 2.0]), "complex128"),
    "ragged": ([[1.0], [1.0, 2.0]], "[[1.0], [1.0, 2.0]]"),
    "bool": (np.array([True, False]), "bool"),
    "nothing": ([None], "[None]"),
    "NaN": (np.array([[1.0, np.nan], [0.0, 1.0]]), "nan at index (0, 1)"),
    "inf": (np.array([[1.0, 0.0], [-np.inf, 1.0]]), "-inf at index (1, 0)"),
}
NOT_SCALARS = {
    "a string": ("1", "'1'"),
    "complex": (1j, "1j"),
    "bool": (True, "True"),
    "NaN": (np.nan, "nan"),
    "inf": (np.inf, "inf"),
    "a list": ([1, 2], "[1, 2]"),
}
POSITIVE = NOT_SCALARS | {"zero": (0.0, "0.0"), "negative": (-1.0, "-1.0")}
VECTORS = NOT_NUMBERS | {"no axis": (1.0, "()"), "no entries": (np.ones((2, 0)), "(2, 0)")}
WRONG_DIMENSION = {"wrong dimension": (np.eye(5)[:1], "(1, 5)")}
POINTS = VECTORS | {"not unit": ([[2.0, 0.0, 0.0]], "2.0"), "zero": (np.zeros((2, 3)), "0.0 at index (0,)")}
MATRICES = NOT_NUMBERS | {
    "not square": (np.ones((3, 2)), "(3, 2)"),
    "one axis": (np.ones(3), "(3,)"),
    "empty": (np.ones((0, 0)), "(0, 0)"),
}
# What each kind of argument refuses: the bad value, and what the message quotes of it.
BAD = {
    "array": NOT_NUMBERS,
    "vectors": VECTORS | {"zero": ([[1.0, 0.0], [0.0, 0.0]], "(1,)")},
    "vectors of 3": VECTORS | WRONG_DIMENSION,
    "points": POINTS,
    "points of 3": POINTS | WRONG_DIMENSION,
    "tokens": POINTS | {"one axis": (np.eye(3)[0], "(3,)"), "no tokens": (np.ones((0, 3)), "(0, 3)")},
    "matrix": MATRICES,
    "matrix of 3": MATRICES | {"wrong dimension": (np.eye(4), "(4, 4)")},
    "beta": NOT_NUMBERS | {"negative": (-0.5, "-0.5"), "infinite": (np.inf, "inf"), "bool": (True, "True")},
    "times": NOT_NUMBERS
    | {
        "unsorted": ([0.0, 2.0, 1.0], "2.0 then 1.0 at index 1"),
        "repeated": ([0.0, 0.0], "0.0 then 0.0"),
        "negative": ([-1.0, 0.0], "-1.0"),
        "empty": ([], "(0,)"),
        "scalar": (1.0, "()"),
        "two axes": ([[0.0, 1.0]], "(1, 2)"),
    },
    "positive": POSITIVE,
    "tolerance": POSITIVE | {"tiny": (1e-17, "1e-17"), "one": (1.0, "1.0")},
    "whole": NOT_SCALARS | {"zero": (0, "0"), "negative": (-2, "-2"), "fraction": (1.5, "1.5")},
    "flag": {"one": (1, "1"), "a string": ("yes", "'yes'"), "nothing": (None, "None")},
    "generator": {"a seed": (0, "0"), "nothing": (None, "None"), "a module": (np.random, "numpy.random")},
    "method": {"unknown": ("rk5", "'rk5'"), "a number": (4, "4"), "a list": (["rk4"], "['rk4']")},
    "field": {"nothing": (None, "None"), "an array": (TOKENS[:1, :1], "array")},
    "leaders": {"tokens": (TOKENS, "array"), "nothing": (None, "None")},
    "index": {"a fraction": ([0.5], "0.5"), "negative": ([-1], "-1"), "repeated": ([2, 2], "[2, 2]")},
    "any times": {"too many": ([1.0, 2.0], "(2,)"), "a scalar": (1.0, "()")},
    "labels": NOT_NUMBERS | {"fractions": ([0.0, 0.5], "0.5"), "empty": ([], "[]"), "two axes": ([[0, 1]], "[[0, 1]]")},
    "basis": NOT_NUMBERS
    | {
        "one axis": (np.eye(3)[0], "(3,)"),
        "wrong dimension": (np.eye(4)[:, :2], "(4, 2)"),
        "no columns": (np.ones((3, 0)), "(3, 0)"),
        "too many columns": (np.ones((3, 4)), "(3, 4)"),
        "not orthonormal": (2 * np.eye(3), "4."),
    },
}
CASES = [
    pytest.param(door, arguments, argument, id=f"{door.__qualname__}-{argument}")
    for door, arguments in DOORS
    for argument in arguments
]


@pytest.mark.parametrize(("door", "arguments"), DOORS)
def test_good_arguments_pass(door, arguments):
    door(**{name: value for name, (_, value) in arguments.items()})


@pytest.mark.parametrize(("door", "arguments", "argument"), CASES)
def test_bad_arguments_are_refused_by_name_and_value(door, arguments, argument):
    good = {name: value for name, (_, value) in arguments.items()}
    for what, (value, received) in BAD[arguments[argument][0]].items():
        if argument == "batch" and what == "a list":  # several axes are welcome
            continue
        try:
            door(**good | {argument: value})
            message = "no error"
        except ValueError as error:
            message = str(error)
        assert re.search(rf"\b{argument}\b.* must .*{re.escape(received)}", message), (what, message)


def test_no_public_function_is_left_out():
    covered = {door for door, _ in DOORS}
    modules = (sphere, spectrum, attention, integrators, circle, simulate, observables, leaders, ensemble, exact)
    elsewhere = {  # bad arguments of these have tests of their own
        *(getattr(ensemble, name) for name in ensemble.__all__),
        integrators.integrate_all,
        integrators.Meeting,
    }
    for module in modules:
        for name in module.__all__:
            door = getattr(module, name)
            results = (
                integrators.Unfinished,
                integrators.Method,
                integrators.Problem,
                integrators.Solution,
                leaders.Leaders,
                leaders.Merges,
                simulate.Trajectory,
                spectrum.LeadingEigenspace,
            )
            assert not callable(door) or door in results or door in elsewhere or door in covered, name


TWO_RUNS, THREE = np.broadcast_to(TOKENS, (2, 4, 3)), np.broadcast_to(MATRIX, (3, 3, 3))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: attention.field(TWO_RUNS, V=THREE), "x"),
        (lambda: attention.jacobian(TWO_RUNS, beta=np.ones(3)), "x"),
        (lambda: attention.Dynamics(3, Q=THREE, beta=np.ones(2)), "beta"),
        (lambda: attention.weights(TOKENS, Q=THREE, K=THREE[:2]), "K"),
        (lambda: simulate.simulate(TWO_RUNS, [1.0], K=THREE), "x0"),
        (lambda: sphere.project(TOKENS[:2], TOKENS[:3]), "y"),
        (lambda: sphere.distance(TOKENS[:2], TOKENS[:3]), "y"),
        (lambda: exact.first_token(TOKENS[:2], THREE, [1.0]), "V"),
    ],
)
def test_batch_axes_that_do_not_fit_are_refused(call, name):
    with pytest.raises(ValueError, match=rf"\b{name}\b.*\(.*[23],\)") as caught:
        call()
    assert "(2,)" in str(caught.value)
    assert "(3,)" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sphere.cap_measure([0.1, 3.2], 3), "delta must be in .*3.2"),
        (lambda: sphere.cap_measure(-0.1, 3), "delta must be in .*-0.1"),
        (lambda: sphere.angle(POINT), r"x must have shape .*\(3,\)"),
        (lambda: spectrum.leading(MATRIX, tol=1.0), "tol must be < 1, got 1.0"),
        (
            lambda: attention.weights(TOKENS, Q=1e200 * MATRIX, K=1e200 * MATRIX),
            "beta .* must be below 1e300",
        ),
        (lambda: attention.weights(TOKENS, beta=1e301), "beta .* must be below 1e300"),
        (lambda: attention.Dynamics(2).check(TOKENS), r"x must .* dimension 2, got shape \(4, 3\)"),
        (lambda: simulate.simulate(TOKENS, [1.0], V=np.eye(2)), r"V must be 3 x 3 .*\(2, 2\)"),
        (lambda: simulate.simulate(TOKENS, [1.0], method="euler"), "dt must be given .* got None"),
        (lambda: simulate.simulate(TOKENS, [1.0], method="RK45", dt=0.1), "dt must be left out .* got 0.1"),
        (
            lambda: simulate.simulate(TOKENS, [1.0], dt=0.1, rtol=1e-3),
            "rtol .* must be left out .* got 0.001",
        ),
        (lambda: observables.collapse_time([0.0], TWO_RUNS, 0.1), r"x must have shape \(1,.*\(2, 4, 3\)"),
        (lambda: observables.collapse_time([0.0], TOKENS, 0.1), r"x must have shape \(1,.*\(4, 3\)"),
        (
            lambda: observables.distance_to_subspace([1.0, 0.0], np.eye(3)),
            r"basis must have shape \(2,.*\(3, 3\)",
        ),
        (lambda: exact.first_token(POINT, MATRIX, [1e13]), r"t must satisfy .* 1e\+13"),
        (lambda: exact.two_tokens(TOKENS, [1.0]), r"x0 must hold exactly two tokens.*\(4, 3\)"),
        (
            lambda: exact.two_tokens(TOKENS[:2], [1.0], beta=[1.0]),
            r"beta.* no batch axes here, got shapes \(1,\)",
        ),
        (lambda: exact.two_tokens(TOKENS[:2], [1.0], beta=301.0), "beta .* must be <= 300 .* 301"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("error", "accepted"), [(5e-13, True), (-5e-13, True), (2e-12, False), (-2e-12, False)])
def test_a_token_may_miss_norm_one_by_the_tolerance(error, accepted):
    x = (1 + error) * np.eye(3)
    if accepted:
        assert checks.tokens("x", x) is x
    else:
        with pytest.raises(ValueError, match="unit vectors"):
            checks.tokens("x", x)


def test_accepted_values_come_back_as_float64():
    assert checks.array("a", [1, 2]).dtype == np.float64
    assert checks.array("a", np.float32(0.5)).dtype == np.float64
    assert checks.times(range(3)).tolist() == [0.0, 1.0, 2.0]
    assert type(checks.positive("p", np.int64(3))) is float
    assert type(checks.whole("w", np.int64(3))) is int
    assert checks.whole("w", 0, least=0) == 0
    assert checks.inverse_temperature([[0], [1]]).shape == (2, 1)
    assert checks.broadcast(("a", (2, 1)), ("b", (3,))) == (2, 3)


def test_long_values_are_cut_in_messages():
    with pytest.raises(ValueError, match=r"a must hold real numbers.*\.\.\.$") as caught:
        checks.array("a", ["x" * 1000])
    assert len(str(caught.value)) < 250
