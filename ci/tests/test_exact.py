"""Closed forms against 50-digit arithmetic and against other closed forms."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from csa_utils import exact, observables, spectrum, sphere

SEEDS = range(20)
EPS = np.finfo(float).eps


def exact_flow(x0, V, t):
    """e^{tV} x0 / |e^{tV} x0| at 50 digits."""
    with mp.workdps(50):
        y = mp.expm(mp.matrix(V.tolist()) * mp.mpf(t)) * mp.matrix(x0.tolist())
        return np.array([float(c / mp.norm(y)) for c in y])


J = np.eye(4) + np.eye(4, k=1)
ROTATION = np.array([[0.0, -1.0], [1.0, 0.0]])
TWO_ROTATIONS = np.kron(np.eye(2), ROTATION) + np.kron(np.eye(2, k=1), np.eye(2))
# A value matrix, and the size of its largest leading Jordan block.
FORMS = {
    "identity": (np.eye(3), 1),
    "zero": (np.zeros((3, 3)), 1),
    "distinct": (np.diag([1.0, 0.5, -2.0]), 1),
    "negative": (np.diag([-1.0, -3.0, -2.0]), 1),
    "J2": (J[:2, :2] - 3 * np.eye(2), 2),
    "J3": (J[:3, :3], 3),
    "J4": (J - np.eye(4), 4),
    "rotation": (ROTATION + 0.5 * np.eye(2), 1),
    "rotation and decay": (np.array([[0.0, -1.0, 0.3], [1.0, 0.0, 0.2], [0.0, 0.0, -1.0]]), 1),
    "complex J2": (TWO_ROTATIONS, 2),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("t", [1e-9, 1e-2, 1.0, 30.0, 1e4])
def test_first_token_against_50_digits(name, t):
    V, k = FORMS[name]
    for seed in range(4):
        x0 = sphere.uniform(1, len(V), np.random.default_rng(seed))[0]
        # What rounding in V alone changes; for a real triangular V there is no such loss.
        tolerance = 2e-15 if np.all(V == np.triu(V)) else 2e-15 + EPS * (2 * t) ** k
        np.testing.assert_allclose(exact.first_token(x0, V, [t])[0], exact_flow(x0, V, t), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("t", [0.5, 10.0])
def test_first_token_in_a_basis_that_is_not_orthogonal(name, t):
    form, k = FORMS[name]
    for seed in range(5):
        rng = np.random.default_rng(seed)
        S = np.linalg.qr(rng.standard_normal(form.shape))[0] * rng.uniform(0.5, 2, len(form))
        V, x0 = S @ form @ np.linalg.inv(S), sphere.uniform(1, len(form), rng)[0]
        tolerance = 1e-13 + 10 * EPS * (t * np.linalg.norm(V)) ** k
        np.testing.assert_allclose(exact.first_token(x0, V, [t])[0], exact_flow(x0, V, t), rtol=0, atol=tolerance)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_first_token_for_gaussian_matrices(d):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        V, x0, t = rng.standard_normal((d, d)), sphere.uniform(1, d, rng)[0], rng.uniform(0, 5)
        np.testing.assert_allclose(exact.first_token(x0, V, [t])[0], exact_flow(x0, V, t), rtol=0, atol=1e-13)


def test_first_token_does_not_see_multiples_of_the_identity_and_scales_with_time():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        V, x0 = rng.standard_normal((3, 3)), sphere.uniform(1, 3, rng)[0]
        x = exact.first_token(x0, V, [0.0, 1.0, 5.0])
        np.testing.assert_allclose(x[0], x0, rtol=0, atol=2e-15)
        np.testing.assert_allclose(exact.first_token(x0, V + 50 * np.eye(3), [0.0, 1.0, 5.0]), x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(exact.first_token(x0, 1e9 * V, [0.0, 1e-9, 5e-9]), x, rtol=0, atol=1e-12)


def test_first_token_solves_its_equation():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        V, x0, h = rng.standard_normal((3, 3)), sphere.uniform(1, 3, rng)[0], 1e-5
        before, x, after = exact.first_token(x0, V, [1 - h, 1.0, 1 + h])
        np.testing.assert_allclose((after - before) / (2 * h), sphere.project(x, V @ x), rtol=0, atol=1e-8)


@pytest.mark.parametrize("t", [1.0, 500.0, 1e4, 1e6])
def test_a_start_in_the_exceptional_subspace_stays_there(t):
    # Components along e_1 are zero, so e^{-t} underflows but the direction is known.
    np.testing.assert_array_equal(exact.first_token([0.0, 1.0], np.diag([1.0, 0.0]), [t]), [[0, 1]])
    V, x0 = np.diag([1.0, -1.0, -2.0]), np.array([0.0, 0.6, 0.8])
    expected = np.array([0, 3, 4 * np.exp(-t)]) / np.hypot(3, 4 * np.exp(-t))
    np.testing.assert_allclose(exact.first_token(x0, V, [t]), [expected], rtol=0, atol=1e-15)
    V = np.zeros((3, 3))
    V[0, 0], V[1:, 1:] = 2, ROTATION
    turned = np.array([0, np.cos(t), np.sin(t)])
    np.testing.assert_allclose(exact.first_token([0.0, 1.0, 0.0], V, [t]), [turned], rtol=0, atol=1e-14 + 4 * EPS * t)


def test_a_component_too_small_to_see_wins_in_the_end():
    x0 = np.array([1e-200, 1.0])
    found = exact.first_token(x0, np.diag([1.0, 0.0]), [400.0, 460.0, 461.0, 600.0])
    for x, t in zip(found, (400, 460, 461, 600), strict=True):
        assert x[0] / x[1] == pytest.approx(float(mp.mpf("1e-200") * mp.exp(t)), rel=1e-12, abs=0)


def test_first_token_broadcasts():
    rng = np.random.default_rng(0)
    x0, V = sphere.uniform(4, 3, rng, batch=(2,)), rng.standard_normal((4, 3, 3))
    found = exact.first_token(x0, V, [0.5, 2.0])
    assert found.shape == (2, 2, 4, 3)
    for i, j in np.ndindex(2, 4):
        np.testing.assert_array_equal(found[:, i, j], exact.first_token(x0[i, j], V[j], [0.5, 2.0]))


@pytest.mark.parametrize("name", [name for name in FORMS if name != "zero"])
def test_first_token_ends_in_the_leading_eigenspace(name):
    # Lemma 3.1: at an exponential rate in L', at the rate 1/t in L if there are Jordan blocks.
    V, k = FORMS[name]
    top = spectrum.leading(V)
    assert top.jordan == k
    for seed in SEEDS:
        x0 = sphere.uniform(1, len(V), np.random.default_rng(seed))[0]
        x = exact.first_token(x0, V, [60.0, 1e4, 2e4])
        assert observables.distance_to_subspace(x[0], top.generalised) < 1e-8
        near, nearer = observables.distance_to_subspace(x[1:], top.basis)
        if k == 1:
            assert nearer < 1e-14
        else:
            assert near / nearer == pytest.approx(2, rel=0.2)
        if top.kind == "real":
            limit = sphere.normalise(top.amplifier @ x0)
            assert sphere.distance(x[2], limit) < (1e-14 if k == 1 else 1e-1)


def pair_at(theta, d=2, seed=0):
    """Two tokens at distance theta, in a random plane if d > 2."""
    a, b = np.eye(d)[:2] if d == 2 else np.linalg.qr(np.random.default_rng(seed).standard_normal((d, 2)))[0].T
    return sphere.normalise(np.stack([a, np.cos(theta) * a + np.sin(theta) * b]))


def distance_in_high_precision(pair):
    a, b = (mp.matrix(x.tolist()) / mp.norm(mp.matrix(x.tolist())) for x in pair)
    return 2 * mp.atan2(mp.norm(a - b), mp.norm(a + b))


@pytest.mark.parametrize("beta", [0.01, 1.0, 9.0, 64.0])
@pytest.mark.parametrize("theta", [1e-6, 0.3, 1.5, 3.0, np.pi - 1e-6])
def test_two_tokens_against_the_exponential_integrals(beta, theta):
    # t = int (1 + e^{beta(1 - cos s)}) / sin s ds from theta(t) to theta(0), in closed form.
    def F(s):
        c = mp.cos(s)
        return mp.log(mp.tan(s / 2)) + (mp.ei(beta * (1 - c)) + mp.exp(2 * beta) * mp.e1(beta * (1 + c))) / 2

    for d in (2, 3):
        x0 = pair_at(theta, d)
        found = exact.two_tokens(x0, [0.0, 0.1, 1.0, 10.0], beta=beta)
        distances = sphere.distance(found[:, 0], found[:, 1])
        np.testing.assert_array_equal(found[:, 0], np.broadcast_to(sphere.normalise(x0[0]), (4, d)))
        with mp.workdps(80):
            start = distance_in_high_precision(x0)
            for t, s in zip((0.1, 1.0, 10.0), distances[1:], strict=True):
                # An error of theta in the last digit is an error of time of this size.
                slack = 1e-15 * (1 + mp.exp(beta * (1 - mp.cos(s)))) / mp.sin(s)
                assert abs(F(start) - F(mp.mpf(s)) - t) < 2e-12 * t + 2 * slack


def second_token(x0, t, Q, K, beta):
    """The second token by direct integration of its equation, independent of the module."""
    a = x0[0]

    def velocity(_, y):
        y = y / np.linalg.norm(y)
        w = 1 / (1 + np.exp(beta * (Q @ y) @ (K @ (y - a))))
        return w * (a - (a @ y) * y)

    y = solve_ivp(velocity, (0, t[-1]), x0[1], method="DOP853", t_eval=t, rtol=3e-14, atol=1e-14).y.T
    return sphere.normalise(y)


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("beta", [0.0, 1.0, 10.0, 64.0])
def test_two_tokens_against_direct_integration(d, beta):
    for seed in range(7):
        rng = np.random.default_rng(seed)
        Q, K = (M / np.linalg.norm(M, 2) for M in rng.standard_normal((2, d, d)))
        x0 = sphere.uniform(2, d, rng)
        found = exact.two_tokens(x0, [0.5, 4.0], Q=Q, K=K, beta=beta)
        np.testing.assert_allclose(found[:, 1], second_token(x0, [0.5, 4.0], Q, K, beta), rtol=0, atol=3e-12)


@pytest.mark.parametrize("beta", [5.0, 100.0, 299.0])
def test_the_time_two_tokens_take_is_the_time_asked_for(beta):
    # The inverse question in higher precision: how long from theta(0) to theta(t)?
    for seed in range(3):
        rng = np.random.default_rng(seed)
        Q, K = (M / np.linalg.norm(M, 2) for M in rng.standard_normal((2, 2, 2)))
        x0 = sphere.circle([0.0, rng.uniform(0.5, 3.0)])
        found = exact.two_tokens(x0, [0.3, 8.0], Q=Q, K=K, beta=beta)
        with mp.workdps(20):
            (a, b), (c, d) = (beta * mp.matrix(Q.T.tolist()) * mp.matrix(K.tolist())).tolist()

            def slowness(s, a=a, b=b, c=c, d=d):  # of the second token (cos s, sin s)
                u, v = mp.cos(s), mp.sin(s)
                return (1 + mp.exp((u * a + v * c) * (u - 1) + (u * b + v * d) * v)) / v

            start, *ends = (distance_in_high_precision(x) for x in (x0, *found))
            for time, end in zip((0.3, 8.0), ends, strict=True):
                elapsed = mp.quad(slowness, mp.linspace(end, start, 5), method="gauss-legendre")
                assert abs(elapsed - time) < 1e-11 * time + 3e-15 * (slowness(end) + slowness(start))


@pytest.mark.parametrize("t", [[0.0], [0.0, 1.0, 1e3], [1e6]])
def test_two_equal_or_opposite_tokens_rest(t):
    a = sphere.uniform(1, 3, np.random.default_rng(0))[0]
    for b in (a, -a):
        expected = np.broadcast_to([a, b], (len(t), 2, 3))
        np.testing.assert_allclose(exact.two_tokens([a, b], t, beta=3.0), expected, rtol=0, atol=2e-16)
    for b in (1.0, 1.0 + 3e-16, -1.0):  # in d = 1 there is nowhere to go
        expected = np.broadcast_to([[1.0], [b]], (len(t), 2, 1))
        np.testing.assert_allclose(exact.two_tokens([[1.0], [b]], t), expected, rtol=0, atol=3e-16)


def test_two_tokens_meet_however_late():
    x = exact.two_tokens(pair_at(3.0, 3), [10.0, 1e3, 1e6], beta=1.0)
    np.testing.assert_allclose(x[1:, 1], x[1:, 0], rtol=0, atol=1e-16)
    assert sphere.distance(x[0, 0], x[0, 1]) > 1e-4


def test_two_tokens_nearly_opposite_leave_along_their_own_great_circle():
    # beta = 0: log tan(theta/2) falls at speed 1/2, in the plane of the start.
    for seed in SEEDS:
        a, b = sphere.uniform(2, 3, np.random.default_rng(seed))
        b = sphere.normalise(-a + 1e-9 * sphere.project(a, b))
        side = sphere.normalise(sphere.project(a, b + a))  # b + a is exact
        theta = 2 * np.arctan(np.exp(-30) / np.tan(sphere.distance(-a, b) / 2))
        found = exact.two_tokens([a, b], [60.0], beta=0.0)[0, 1]
        np.testing.assert_allclose(found, np.cos(theta) * a + np.sin(theta) * side, rtol=0, atol=1e-13)


def test_two_tokens_of_a_batch_are_those_of_its_members():
    x0 = sphere.uniform(2, 3, np.random.default_rng(0), batch=(2, 2))
    found = exact.two_tokens(x0, [0.5, 1.0], beta=2.0)
    assert found.shape == (2, 2, 2, 2, 3)
    np.testing.assert_array_equal(found[:, 1, 0], exact.two_tokens(x0[1, 0], [0.5, 1.0], beta=2.0))


@pytest.mark.parametrize(("k", "t"), [(2, 1e2), (2, 1e3), (2, 1e4), (3, 1e2), (3, 5e2)])
def test_a_jordan_block_in_general_position_is_kept(k, t):
    # whole numbers only: V = S J S^{-1} is exact, and e^{tJ} is a polynomial
    S = np.array([[1, 1, 0], [1, 2, 1], [0, 1, 2]])[:k, :k]
    N = np.diag(np.ones(k - 1), 1)
    inverse = np.round(np.linalg.inv(S) * np.linalg.det(S)) / round(np.linalg.det(S))
    V = S @ (np.eye(k) + N) @ inverse
    assert np.array_equal(V, np.round(V))
    x0 = sphere.normalise(np.arange(1.0, k + 1))
    powers = [np.linalg.matrix_power(N, j) * t**j / math.factorial(j) for j in range(k)]
    wanted = sphere.normalise(S @ sum(powers) @ inverse @ x0)
    error = sphere.distance(exact.first_token(x0, V, [t])[0], wanted)
    allowed = 1e-15 * (t * np.linalg.norm(V)) ** k
    assert error <= allowed < 0.02
