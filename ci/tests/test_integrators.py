"""Solvers: their order, their tolerance, and that tokens stay on the sphere."""

import numpy as np
import pytest
import twins
from scipy.integrate import solve_ivp

from csa_utils import exact, integrators, sphere
from csa_utils.attention import Dynamics
from csa_utils.integrators import METHODS, integrate

SEEDS = range(20)
PLAIN = [name for name, m in METHODS.items() if not m.stepper]  # those that take any field
ADAPTIVE = [name for name in PLAIN if METHODS[name].adaptive]
EVERY = pytest.mark.parametrize("method", PLAIN)


def settings(method, dt=0.1, rtol=1e-6):
    return {"rtol": rtol, "atol": max(rtol, 3e-14)} if METHODS[method].adaptive else {"dt": dt}


def problem(seed, n=3, d=4):
    """The field x -> P_x V x for a generic V of norm 1, a start, and the exact flow."""
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((d, d))
    V /= np.linalg.norm(V, 2)

    def field(x):
        Vx = x @ V.T
        return Vx - np.sum(Vx * x, axis=-1, keepdims=True) * x

    x0 = sphere.uniform(n, d, rng)
    return field, x0, lambda t: exact.first_token(x0, V, t)


@pytest.mark.parametrize(("method", "steps"), [("euler", [40, 80, 160]), ("rk4", [10, 20, 40])])
def test_the_error_of_a_fixed_step_method_has_the_stated_order(method, steps):
    for seed in SEEDS:
        field, x0, flow = problem(seed)
        errors = [np.linalg.norm(integrate(field, x0, [2.0], method, dt=2 / k).x - flow([2.0])) for k in steps]
        order = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
        assert order == pytest.approx(METHODS[method].order, abs=0.25)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_the_error_of_an_adaptive_method_goes_with_the_tolerance(method):
    t = [0.3, 1.1, 3.0]
    for rtol in (1e-3, 1e-5, 1e-8):
        errors = []
        for seed in SEEDS:
            field, x0, flow = problem(seed, n=1)
            errors.append(np.abs(integrate(field, x0, t, method, **settings(method, rtol=rtol)).x - flow(t)).max())
        assert np.median(errors) < 20 * rtol
        assert max(errors) < 500 * rtol


def test_the_default_is_accurate_to_ten_digits():
    for seed in SEEDS:
        field, x0, flow = problem(seed)
        t = np.linspace(0, 10, 7)
        np.testing.assert_allclose(integrate(field, x0, t).x, flow(t), rtol=0, atol=1e-9)


@EVERY
def test_a_repelling_sphere_does_not_lose_its_tokens(method):
    dynamics = Dynamics(3, V=-np.eye(3))
    x0 = sphere.uniform(6, 3, np.random.default_rng(0))
    end = 5000.0 if METHODS[method].adaptive else 500.0
    found = integrate(
        lambda x: twins.field(dynamics, x), x0, [10.0, end], method, **settings(method, dt=0.5, rtol=1e-5)
    )
    np.testing.assert_allclose(np.linalg.norm(found.x, axis=-1), 1, rtol=0, atol=4e-16)
    assert np.abs(dynamics.field(found.x[-1])).max() < 1e-4  # at rest


def test_the_plain_ambient_formula_does_lose_them():
    dynamics = Dynamics(3, V=-np.eye(3))
    x0 = sphere.uniform(6, 3, np.random.default_rng(0))
    raw = solve_ivp(lambda t, y: twins.field(dynamics, y.reshape(6, 3)).ravel(), (0, 20), x0.ravel(), rtol=1e-6)
    assert np.abs(np.linalg.norm(raw.y[:, -1].reshape(6, 3), axis=-1) - 1).max() > 0.1


@EVERY
def test_the_field_is_asked_at_unit_vectors_only(method):
    field, x0, _ = problem(0)
    calls = []

    def watched(x):
        calls.append(np.abs(np.linalg.norm(x, axis=-1) - 1).max())
        assert x.shape == x0.shape
        return field(x)

    found = integrate(watched, x0, [1.0, 5.0], method, **settings(method))
    assert max(calls) < 5e-16
    assert found.evaluations == len(calls)


@EVERY
def test_outputs_are_at_the_times_asked_for(method):
    field, x0, flow = problem(0)
    t = [0.0, 0.1, 0.25, 1 / 3, 2.0]
    found = integrate(field, x0, t, method, **settings(method, dt=0.01))
    assert found.t.tolist() == t
    np.testing.assert_array_equal(found.x[0], x0)
    np.testing.assert_allclose(found.x, flow(t), rtol=0, atol=1e-2 if method == "euler" else 1e-4)


@EVERY
def test_time_zero_alone_returns_the_start(method):
    field, x0, _ = problem(0)
    for t in ([0.0], [0]):
        np.testing.assert_array_equal(integrate(field, x0, t, method, **settings(method)).x, x0[None])


@pytest.mark.parametrize(
    ("t", "dt", "steps"),
    [([0.3], 0.1, 3), ([0.7], 0.1, 7), ([0.31], 0.1, 4), ([0.05], 0.1, 1), ([0.1, 0.2, 0.3], 0.1, 3), ([1.0], 1e9, 1)],
)
def test_the_step_is_the_largest_that_divides_the_time_evenly(t, dt, steps):
    field, x0, _ = problem(0)
    # One more evaluation at the start checks the field's shape.
    assert integrate(field, x0, t, "euler", dt=dt).evaluations == steps + 1
    assert integrate(field, x0, t, "rk4", dt=dt).evaluations == 4 * steps + 1
    shorter = integrate(field, x0, t, "rk4", dt=t[-1] / steps).x[-1]
    np.testing.assert_allclose(integrate(field, x0, t, "rk4", dt=dt).x[-1], shorter, rtol=0, atol=1e-15)


@EVERY
def test_inputs_stay_as_they_are(method):
    field, x0, _ = problem(0)
    t = np.array([0.0, 0.5])
    start, times = x0.copy(), t.copy()
    found = integrate(field, x0, t, method, **settings(method))
    np.testing.assert_array_equal(x0, start)
    np.testing.assert_array_equal(t, times)
    assert not np.shares_memory(found.t, t)
    assert not np.shares_memory(found.x, x0)


@EVERY
def test_leading_axes_are_independent_runs(method):
    field, _, _ = problem(0)
    x0 = sphere.uniform(2, 4, np.random.default_rng(0), batch=(3,))
    found = integrate(field, x0, [1.0], method, **settings(method, rtol=1e-8))
    assert found.x.shape == (1, 3, 2, 4)
    for i in range(3):
        alone = integrate(field, x0[i], [1.0], method, **settings(method, rtol=1e-8))
        np.testing.assert_allclose(found.x[:, i], alone.x, rtol=0, atol=1e-6 if METHODS[method].adaptive else 1e-15)


@pytest.mark.parametrize(
    ("field", "received"),
    [
        (lambda x: x[0], r"\(4,\)"),
        (lambda x: x[:, :1], r"\(3, 1\)"),
        (lambda x: x[:2], r"\(2, 4\)"),
        (lambda x: np.vstack([x, x]), r"\(6, 4\)"),
        (lambda x: x[None], r"\(1, 3, 4\)"),
        (lambda x: 0.0, r"\(\)"),
        (lambda x: None, "None"),
        (lambda x: 1j * x, "complex"),
        (lambda x: x / 0 * 0, "nan"),
        (lambda x: np.full(x.shape, np.inf), "inf"),
    ],
)
@EVERY
def test_a_field_that_returns_something_else_is_refused(method, field, received):
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=f"field must .*{received}"):
        integrate(field, problem(0)[1], [0.0, 1.0], method, **settings(method))


@EVERY
def test_a_field_that_breaks_down_on_the_way_is_an_arithmetic_error(method):
    def field(x):
        return np.where(x[..., :1] > 0.9, np.nan, np.eye(2)[0] - x[..., :1] * x)

    with pytest.raises(ArithmeticError, match=rf"{method} (stopped before t = 20|left the finite numbers)"):
        integrate(field, [[0.0, 1.0]], [0.1, 20.0], method, **settings(method))


def test_a_solution_says_what_ran():
    field, x0, _ = problem(0)
    found = integrate(field, x0, [1.0], "rk4", dt=0.5)
    assert (found.method, found.options) == (METHODS["rk4"], {"dt": 0.5})
    found = integrate(field, x0, [1.0])
    assert (found.method.name, found.options) == ("DOP853", {"rtol": 1e-10, "atol": 1e-12})
    assert {name: m.order for name, m in integrators.METHODS.items() if not m.adaptive} == {"euler": 1, "rk4": 4}


def test_a_step_that_would_never_end_is_refused():
    with pytest.raises(ValueError, match="dt must be at least"):
        integrate(lambda x: 0 * x, np.eye(2), [1.0], "euler", dt=1e-300)
