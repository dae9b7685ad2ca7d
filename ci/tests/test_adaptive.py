"""The compiled methods: order, tolerance, long times, events, interruption."""

import os
import signal
import time

import numpy as np
import pytest

from csa_utils import exact, sphere
from csa_utils.integrators import METHODS, Meeting, Unfinished, implicit, integrate, integrate_all
from csa_utils.integrators.adaptive import REJECTED, STEP, State
from csa_utils.integrators.problem import event_arrays
from csa_utils.simulate import simulate

SEEDS = range(20)
COMPILED = [name for name, m in METHODS.items() if m.stepper]
EVERY = pytest.mark.parametrize("method", COMPILED)


def problem(seed, n=5, d=3, beta=2.0):
    """A problem with random Q, K, V of norm 1, and a start."""
    from csa_utils.attention import Dynamics

    rng = np.random.default_rng(seed)
    Q, K, V = (M / np.linalg.norm(M, 2) for M in rng.standard_normal((3, d, d)))
    return Dynamics(d, Q=Q, K=K, V=V, beta=beta).problems(n)[0], sphere.uniform(n, d, rng)


def with_step(method, p, x0, end, steps):
    """End point after `steps` equal steps: the tolerance is so large that all are accepted."""
    state = State(METHODS[method].stepper, p, x0, np.array([end]), event_arrays((), len(x0)), 1e9)
    for _ in range(steps):
        state.state[STEP] = end / steps
        state.advance(1)
    assert state.state[REJECTED] == 0
    return state.x


@EVERY
@pytest.mark.parametrize("d", [2, 3, 5])
def test_the_error_has_the_stated_order(method, d):
    steps = {"explicit": [4, 6, 9], "implicit": [16, 32, 64]}[method]
    orders = []
    for seed in SEEDS:
        p, x0 = problem(seed, d=d)
        best = integrate(p, x0, [2.0], "explicit", tol=1e-13).x[-1]
        errors = [np.linalg.norm(with_step(method, p, x0, 2.0, k) - best) for k in steps]
        orders.append(-np.polyfit(np.log(steps), np.log(errors), 1)[0])
    assert np.median(orders) == pytest.approx(METHODS[method].order, abs=0.35)


def test_the_coefficients_satisfy_their_conditions():
    """Order 4, the embedded order 3 and the interpolant's order 3, to the last digit.

    The conditions of Hairer and Wanner II, Section IV.7, in alpha, B = alpha + Gamma and b.
    """
    A, C, H = implicit.A, implicit.C, implicit.H
    gamma = np.linalg.inv(np.eye(6) / implicit.GAMMA - C)
    alpha, last = A @ gamma, np.append(A[5, :5], 1.0)
    B, b, embedded = alpha + gamma, last @ gamma, A[5] @ gamma
    a, beta = alpha.sum(axis=1), (alpha + gamma).sum(axis=1)
    third = np.array([np.ones(6), beta, a**2, B @ beta])
    fourth = np.array([a**3, a * (alpha @ beta), B @ a**2, B @ (B @ beta)])
    np.testing.assert_allclose(third @ b, [1, 1 / 2, 1 / 3, 1 / 6], rtol=0, atol=1e-13)
    np.testing.assert_allclose(fourth @ b, [1 / 4, 1 / 8, 1 / 12, 1 / 24], rtol=0, atol=1e-13)
    np.testing.assert_allclose(third @ embedded, [1, 1 / 2, 1 / 3, 1 / 6], rtol=0, atol=1e-13)
    np.testing.assert_allclose(B[5], b, rtol=0, atol=1e-13)  # stiffly accurate, hence R(infinity) = 0
    # The weights at the share s of a step are a cubic in s; so are the conditions.
    cubic = [(last + H[0]) @ gamma, (H[1] - H[0]) @ gamma, -H[1] @ gamma]
    wanted = [[1, 0, 0, 0], [0, 1 / 2, 0, 0], [0, 0, 1 / 3, 1 / 6]]
    np.testing.assert_allclose([third @ c for c in cubic], wanted, rtol=0, atol=1e-13)


@EVERY
@pytest.mark.parametrize("d", [2, 3, 5])
def test_the_error_goes_with_the_tolerance(method, d):
    t = [0.3, 1.1, 3.0, 9.0]
    for tol in (1e-4, 1e-6, 1e-8):
        errors = []
        for seed in SEEDS:
            p, x0 = problem(seed, d=d)
            best = integrate(p, x0, t, "explicit", tol=1e-13).x
            errors.append(np.abs(integrate(p, x0, t, method, tol=tol).x - best).max())
        assert np.median(errors) < 20 * tol
        assert max(errors) < 500 * tol


@EVERY
def test_outputs_are_at_the_times_asked_for_and_do_not_change_the_steps(method):
    for seed in SEEDS:
        p, x0 = problem(seed)
        t = np.concatenate([[0.0], np.sort(np.random.default_rng(seed).uniform(0, 8, 40)), [8.0]])
        run, few = integrate(p, x0, t, method, tol=1e-7), integrate(p, x0, [8.0], method, tol=1e-7)
        best = integrate(p, x0, t, "explicit", tol=1e-13)
        assert (run.t.tolist(), run.steps, run.rejected) == (t.tolist(), few.steps, few.rejected)
        np.testing.assert_array_equal(run.x[0], x0)
        np.testing.assert_array_equal(run.x[-1], few.x[-1])
        np.testing.assert_allclose(run.x, best.x, rtol=0, atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(run.x, axis=-1), 1, rtol=0, atol=4e-16)
        assert run.end[0] == 8.0


@EVERY
def test_one_token_alone_follows_the_matrix_exponential(method):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        V, x0 = rng.standard_normal((4, 4)), sphere.uniform(1, 4, rng)
        run = simulate(x0, [0.5, 2.0], V=V, method=method, tol=1e-9)
        np.testing.assert_allclose(run.x[:, 0], exact.first_token(x0[0], V, run.t), rtol=0, atol=1e-6)


@EVERY
@pytest.mark.parametrize("beta", [0.0, 9.0, 64.0])
def test_two_tokens_follow_the_quadrature(method, beta):
    t = [1.0, 10.0, 40.0]
    for seed in range(5):
        pair = sphere.uniform(2, 3, np.random.default_rng(seed))
        run = simulate(pair, t, beta=beta, method=method, tol=1e-9)
        np.testing.assert_allclose(run.x, exact.two_tokens(pair, t, beta=beta), rtol=0, atol=1e-7)


def test_two_tokens_meet_at_the_time_of_the_quadrature_though_it_is_1e50():
    # Opposite but for three degrees, beta = 64: nothing seems to happen for 1e54 units.
    pair = sphere.circle(np.array([0.0, np.radians(177)]))
    merge = Meeting.merge(0, 1, radius=0.5, stop=True)
    run = simulate(pair, [1e300], beta=64.0, events=[merge], tol=1e-8)
    assert run.method == "implicit"
    before, after = exact.two_tokens(pair, [run.end * (1 - 1e-5), run.end * (1 + 1e-5)], beta=64.0)
    apart = [sphere.distance(*x) for x in (before, after)]
    assert 1e50 < run.end < 1e60
    assert apart[1] <= 0.5 <= apart[0]
    assert run.steps < 5000


@pytest.mark.parametrize(("n", "d", "beta"), [(200, 2, 64.0), (60, 3, 36.0), (40, 4, 16.0)])
def test_the_final_collapse_is_an_ordinary_run(n, d, beta):
    for seed in range(3):
        x0 = sphere.uniform(n, d, np.random.default_rng(seed))
        run = simulate(x0, [1e300], beta=beta, events=[Meeting.collapse(n, radius=1e-3)], tol=1e-4)
        np.testing.assert_array_equal(run.final[0], x0[0])
        assert sphere.distance(run.final, x0[0]).max() <= 1.0001e-3
        assert run.events[0] == run.end > 10
        assert len(run.t) == 0


def test_clusters_merge_the_same_way_whatever_the_tolerance():
    for seed in range(5):
        x0 = sphere.uniform(30, 2, np.random.default_rng(seed))
        ends = [
            simulate(x0, [1e300], beta=25.0, events=[Meeting.collapse(30)], tol=tol, method="implicit").end
            for tol in (1e-4, 1e-6)
        ]
        assert abs(np.log10(ends[0] / ends[1])) < 0.01


@EVERY
def test_events_happen_when_a_dense_output_says_so(method):
    for seed in SEEDS:
        x0 = sphere.uniform(6, 3, np.random.default_rng(seed))
        events = [Meeting.merge(0, 1, 0.3), Meeting([[0, 1], [0, 2]], 0.2), Meeting.merge(0, 5, 3.1)]
        run = simulate(x0, np.linspace(0, 40, 4001), beta=1.0, method=method, tol=1e-8, events=events)
        for event, found in zip(events, run.events, strict=True):
            i = np.argmax(event.gap(run.x) <= 0)
            assert (0 if i == 0 else run.t[i - 1]) <= found <= run.t[i] + 1e-12
        never = simulate(x0, [1.0], beta=1.0, method=method, events=[Meeting.merge(0, 1, 1e-9)])
        assert np.isnan(never.events[0])


@EVERY
def test_a_stop_ends_the_run_and_what_comes_later_has_not_happened(method):
    x0 = sphere.circle(np.array([0.0, 1.0, 1.5]))
    t = np.linspace(0, 30, 301)
    stop, later = Meeting.merge(0, 1, 0.3, stop=True), Meeting.merge(0, 2, 0.3)
    free = simulate(x0, t, method=method, events=[Meeting.merge(0, 1, 0.3), later])
    run = simulate(x0, t, method=method, events=[stop, later])
    assert free.events[1] > free.events[0]
    np.testing.assert_allclose(run.events, [free.events[0], np.nan], rtol=1e-6)
    assert run.end == run.events[0]
    assert run.t.tolist() == t[t <= run.end].tolist()
    assert sphere.distance(run.final[0], run.final[1]) == pytest.approx(0.3, abs=1e-6)


def test_runs_of_a_batch_stop_each_at_its_own_time():
    x0 = sphere.uniform(4, 2, np.random.default_rng(0), batch=(3, 2))
    run = simulate(x0, np.linspace(0, 60, 61), events=[Meeting.collapse(4, 0.1)])
    assert run.end.shape == (3, 2)
    assert run.final.shape == (3, 2, 4, 2)
    for i in np.ndindex(3, 2):
        alone = simulate(x0[i], np.linspace(0, 60, 61), events=[Meeting.collapse(4, 0.1)])
        assert alone.end == run.end[i]
        np.testing.assert_array_equal(run.x[: len(alone.t), *i], alone.x)
        assert np.all(np.isnan(run.x[len(alone.t) :, *i]))


@EVERY
def test_an_event_that_holds_at_the_start_happens_at_once(method):
    x0 = sphere.circle(np.array([0.0, 0.1]))
    run = simulate(x0, [0.0, 5.0], method=method, events=[Meeting.merge(0, 1, 0.5, stop=True)])
    assert run.events[0] == run.end == 0
    np.testing.assert_array_equal(run.final, x0)


@EVERY
def test_frozen_tokens_stay_and_attract(method):
    theta = np.array([0.0, 2.0])
    x0 = sphere.circle(np.array([0.4, 1.7, -0.5]))
    run = simulate(x0, [60.0], beta=14.0, frozen=sphere.circle(theta), frozen_weights=[40, 40], method=method)
    np.testing.assert_allclose(sphere.angle(run.x[-1]), [0, 2, 0], atol=0.05)
    judged = simulate(x0, [3.0], beta=14.0, frozen=sphere.circle(theta), frozen_weights=[40, 40], method="DOP853")
    ours = simulate(x0, [3.0], beta=14.0, frozen=sphere.circle(theta), frozen_weights=[40, 40], method=method, tol=1e-8)
    np.testing.assert_allclose(ours.x, judged.x, rtol=0, atol=1e-6)
    assert run.x.shape == (1, 3, 2)


def test_V_with_its_leading_plane_keeps_small_forces_too():
    """V = diag(1, 1, 1/2): tokens near the leading circle are as metastable as on the circle."""
    phi = np.array([0.0, 2.9])
    flat = simulate(sphere.circle(phi), [1e300], beta=49.0, events=[Meeting.merge(0, 1, 0.5, stop=True)], tol=1e-7)
    x0 = np.column_stack([sphere.circle(phi), [0.0, 0.0]])
    inside = simulate(
        x0, [1e300], V=np.diag([1, 1, 0.5]), beta=49.0, events=[Meeting.merge(0, 1, 0.5, stop=True)], tol=1e-7
    )
    assert flat.end > 1e30
    assert inside.end == pytest.approx(flat.end, rel=1e-4)


def test_many_problems_run_on_threads_and_alike():
    pairs = [problem(seed) for seed in SEEDS]
    together = integrate_all([p for p, _ in pairs], [x for _, x in pairs], [1.0, 4.0], "implicit", threads=3)
    for (p, x), found in zip(pairs, together, strict=True):
        np.testing.assert_array_equal(found.x, integrate(p, x, [1.0, 4.0], "implicit").x)


def test_a_run_says_how_far_it_is():
    p, x0 = problem(0, n=300, d=2)
    reached = []
    integrate_all([p], x0[None], [3000.0], "explicit", watch=lambda t: reached.append(t[0]))
    assert len(reached) > 2
    assert reached == sorted(reached)
    assert reached[-1] <= 3000


@pytest.mark.parametrize("batch", [(), (3,)])
def test_ctrl_c_keeps_what_is_done(batch, monkeypatch):
    x0 = sphere.uniform(300, 3, np.random.default_rng(0), batch=batch)
    pressed = []

    def press(self, reached):
        if max(reached) > 3 and not pressed:
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("csa_utils.simulate._Watch.__call__", press)
    with pytest.raises(Unfinished) as caught:
        simulate(x0, np.linspace(0, 1e4, 10**4 + 1), V=-np.eye(3), beta=30.0, method="explicit")
    assert time.monotonic() - pressed[0] < 5
    partial = caught.value.partial
    assert isinstance(caught.value, KeyboardInterrupt)
    assert 4 <= len(partial.t) < 10**4
    assert partial.end.max() > 3
    shorter = simulate(x0, partial.t[:2], V=-np.eye(3), beta=30.0, method="explicit")
    done = ~np.isnan(partial.x[:2])  # of a batch, some runs may not have begun
    np.testing.assert_allclose(partial.x[:2][done], shorter.x[done], rtol=0, atol=1e-7)
    assert done[1].any()


def test_a_solution_says_what_ran():
    p, x0 = problem(0)
    run = integrate(p, x0, [1.0], "implicit", tol=1e-5)
    assert (run.method, run.options) == (METHODS["implicit"], {"tol": 1e-5})
    assert run.steps > 3
    assert run.evaluations >= 5 * run.steps
    assert {name: METHODS[name].order for name in COMPILED} == {"explicit": 8, "implicit": 4}


BAD_EVENTS = [
    ({"pairs": [[0, 0.5]], "radius": 0.1}, "pairs must be whole"),
    ({"pairs": [0, 1], "radius": 0.1}, "pairs must be whole"),
    ({"pairs": np.empty((0, 2), int), "radius": 0.1}, "pairs must be whole"),
    ({"pairs": [[0, -1]], "radius": 0.1}, "pairs must hold indices >= 0, got -1"),
    ({"pairs": [[0, 1]], "radius": 0.0}, "radius must be finite and > 0, got 0.0"),
    ({"pairs": [[0, 1]], "radius": 3.2}, "radius must be below pi"),
    ({"pairs": [[0, 1]], "radius": 1.0, "stop": 1}, "stop must be True or False, got 1"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_EVENTS)
def test_bad_events_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Meeting(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "implicit", "causal": False}, "method must not be 'implicit' for this problem"),
        ({"method": "explicit", "dt": 0.1}, "dt must be left out for 'explicit'"),
        ({"method": "explicit", "rtol": 0.1}, "rtol must be left out for 'explicit'"),
        ({"method": "DOP853", "tol": 1e-6}, "tol must be left out for 'DOP853'"),
        ({"method": "rk4", "dt": 0.1, "events": [Meeting.merge(0, 1, 0.1)]}, "events must be left out for 'rk4'"),
        ({"events": [Meeting.merge(0, 7, 0.1)]}, "events must name tokens below n = 5, got 7"),
        ({"events": ["collapse"]}, "events must be Meetings, got 'collapse'"),
        ({"tol": 0.0}, "tol must be finite and > 0"),
        ({"tol": 2.0}, r"tol must be in \[3e-14, 1\)"),
        ({"tol": np.nan}, "tol must be finite"),
        ({"progress": "yes"}, "progress must be True, False or None"),
        ({"frozen": [[1.0, 0.0]]}, r"frozen must have shape \(m, 3\)"),
        ({"frozen": [[1.0, 1.0, 0.0]]}, "frozen must be unit vectors"),
        ({"frozen": [[1.0, 0.0, 0.0]], "frozen_weights": [-1.0]}, "frozen_weights must be > 0, got -1"),
        ({"frozen_weights": [1.0]}, "frozen_weights must be left out without frozen"),
    ],
)
def test_bad_arguments_of_simulate_are_refused(arguments, message):
    x0 = sphere.uniform(5, 3, np.random.default_rng(0))
    with pytest.raises(ValueError, match=message):
        simulate(x0, [1.0], **arguments)


def test_a_compiled_method_asks_for_a_compiled_problem():
    p, x0 = problem(0)
    with pytest.raises(ValueError, match="field must be a compiled Problem"):
        integrate(lambda x: 0 * x, x0, [1.0], "explicit")
    with pytest.raises(ValueError, match=r"x0 must have shape \(5, 3\)"):
        integrate(p, x0[:4], [1.0], "explicit")
    with pytest.raises(ValueError, match="one start a problem"):
        integrate_all([p, p], x0[None], [1.0], "explicit")
    with pytest.raises(ValueError, match="method must be 'explicit' or 'implicit' here"):
        integrate_all([p], x0[None], [1.0], "rk4")
