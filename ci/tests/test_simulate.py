"""Whole runs against closed forms, and what the mask and the batch axes promise."""

import numpy as np
import pytest

from csa_utils import exact, observables, sphere
from csa_utils.integrators import METHODS
from csa_utils.simulate import simulate

SEEDS = range(20)
T = [0.0, 0.5, 3.0]


def random_systems(n=5, d=3, beta=2.0):
    """Tokens (20, n, d) and matrices (20, d, d), one for each seed; Q and K have norm 1."""
    x0, parameters = [], {"Q": [], "K": [], "V": []}
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        x0.append(sphere.uniform(n, d, rng))
        for name in parameters:
            M = rng.standard_normal((d, d))
            parameters[name].append(M / np.linalg.norm(M, 2))
    return np.array(x0), {name: np.array(M) for name, M in parameters.items()} | {"beta": beta}


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("beta", [1.0, 20.0])
def test_the_first_token_follows_the_matrix_exponential(d, beta):
    x0, parameters = random_systems(n=3, d=d, beta=beta)
    run = simulate(x0, T, **parameters)
    expected = exact.first_token(x0[:, 0], parameters["V"], T)
    np.testing.assert_allclose(run.x[..., 0, :], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("beta", [0.0, 1.0, 9.0, 64.0])
def test_two_tokens_follow_the_quadrature(d, beta):
    x0, parameters = random_systems(n=2, d=d, beta=beta)
    parameters["V"] = None
    run = simulate(x0, [0.0, 1.0, 8.0], **parameters)
    for i, (pair, Q, K) in enumerate(zip(x0[:5], parameters["Q"], parameters["K"], strict=False)):
        expected = exact.two_tokens(pair, run.t, Q=Q, K=K, beta=beta)
        np.testing.assert_allclose(run.x[:, i], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("options", "tolerance"), [({"method": "rk4", "dt": 0.05}, 1e-12), ({}, 1e-8)])
def test_the_first_k_tokens_ignore_the_later_ones(options, tolerance):
    x0, parameters = random_systems()
    others = np.concatenate([x0[:, :3], x0[::-1, 3:]], axis=1)
    whole = simulate(x0, T, **parameters, **options).x[..., :3, :]
    for y in (x0[:, :3], others):
        found = simulate(y, T, **parameters, **options).x[..., :3, :]
        np.testing.assert_allclose(found, whole, rtol=0, atol=tolerance)


def test_without_the_mask_they_do_not():
    x0, parameters = random_systems()
    masked, full = (simulate(x0, T, **parameters, causal=causal).x[-1] for causal in (True, False))
    alone = simulate(x0[:, :3], T, **parameters, causal=False).x[-1]
    assert np.abs(masked - full).max(axis=(1, 2)).min() > 1e-4
    assert np.abs(alone - full[:, :3]).max(axis=(1, 2)).min() > 1e-4


@pytest.mark.parametrize(("options", "tolerance"), [({"method": "rk4", "dt": 0.1}, 1e-13), ({}, 1e-8)])
def test_a_batch_is_its_separate_runs(options, tolerance):
    rng = np.random.default_rng(0)
    x0 = sphere.uniform(4, 3, rng, batch=(2, 1))
    V, beta = rng.standard_normal((3, 3, 3)), np.array([[0.5], [4.0]])
    run = simulate(x0, T, V=V, beta=beta, **options)
    assert run.batch == (2, 3)
    assert run.x.shape == (3, 2, 3, 4, 3)
    for a, b in np.ndindex(2, 3):
        alone = simulate(x0[a, 0], T, V=V[b], beta=beta[a, 0], **options)
        np.testing.assert_allclose(run.x[:, a, b], alone.x, rtol=0, atol=tolerance)


def test_parameters_with_batch_axes_run_on_copies_of_the_tokens():
    x0 = random_systems()[0][0]
    run = simulate(x0, [0.0, 1.0], beta=[0.0, 1.0, 9.0], method="rk4", dt=0.1)
    np.testing.assert_array_equal(run.x[0], np.broadcast_to(x0, (3, 5, 3)))
    assert np.abs(run.x[1, 0] - run.x[1, 2]).max() > 1e-3


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_every_method_solves_the_same_equation(causal):
    x0, parameters = random_systems(n=3)
    x0, parameters = x0[:2], {name: parameters[name][:2] for name in "QKV"}
    best = simulate(x0, T, **parameters, causal=causal, rtol=1e-12, atol=1e-13).x
    for method, m in METHODS.items():
        options = {"rtol": 1e-8, "atol": 1e-8} if m.adaptive else {"dt": 0.002 if m.order == 1 else 0.05}
        if m.stepper:
            if method == "implicit" and not causal:
                continue
            options = {"tol": 1e-8}
        run = simulate(x0, T, **parameters, causal=causal, method=method, **options)
        np.testing.assert_allclose(run.x, best, rtol=0, atol=0.02 if m.order == 1 else 5e-6)


def test_rotating_everything_rotates_the_run():
    x0, parameters = random_systems()
    R, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))
    turned = {name: R @ parameters[name] @ R.T for name in "QKV"} | {"beta": parameters["beta"]}
    expected = simulate(x0, T, **parameters).x @ R.T
    np.testing.assert_allclose(simulate(x0 @ R.T, T, **turned).x, expected, rtol=0, atol=1e-8)


def test_for_V_identity_all_tokens_end_at_the_first_one():
    x0, parameters = random_systems(n=6, beta=1.0)
    run = simulate(x0, [150.0], **parameters | {"V": None}, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(run.x[0], np.broadcast_to(x0[:, :1], x0.shape), rtol=0, atol=1e-5)


def test_for_V_minus_identity_they_stay_apart_and_on_the_sphere():
    x0, parameters = random_systems(n=6, beta=1.0)
    run = simulate(x0, [1.0, 150.0], **parameters | {"V": -np.eye(3)}, rtol=1e-6, atol=1e-6)
    assert observables.diameter(run.x[-1]).min() > 1
    np.testing.assert_allclose(np.linalg.norm(run.x, axis=-1), 1, rtol=0, atol=4e-16)


@pytest.mark.parametrize(("causal", "rate"), [(True, 0.5), (False, 1.0)], ids=["causal", "full"])
def test_two_tokens_meet_at_rate_one_half_and_at_rate_one_without_the_mask(causal, rate):
    x0, parameters = random_systems(n=2, beta=1.0)
    t = np.array([16.0, 20.0]) * (0.5 / rate) + 8
    run = simulate(x0, t, **parameters | {"V": None}, causal=causal, rtol=1e-13, atol=3e-14)
    near, nearer = observables.diameter(run.x)
    np.testing.assert_allclose(np.log(near / nearer) / (t[1] - t[0]), rate, rtol=0, atol=0.01)


def test_a_trajectory_says_what_ran():
    x0, parameters = random_systems()
    run = simulate(x0, T, **parameters)
    assert (run.method, run.order, run.options) == ("explicit", 8, {"tol": 1e-10})
    assert run.steps > 20
    assert run.rejected >= 0
    assert run.evaluations >= 12 * (run.steps + run.rejected)
    assert (run.n, run.d, run.batch, run.t.tolist()) == (5, 3, (20,), T)
    assert "causal attention, n=5, d=3, batch=(20,), 3 times to t=3; explicit with tol=1e-10" in repr(run)
    np.testing.assert_array_equal(run.x[0], x0)
    np.testing.assert_array_equal(run.dynamics.V, parameters["V"])
    run = simulate(x0, T, **parameters, dt=0.5, causal=False)
    # Six steps, and one look at the field before them.
    assert (run.method, run.order, run.options, run.evaluations) == ("rk4", 4, {"dt": 0.5}, 4 * 6 + 1)
    assert "full attention" in repr(run)
    assert run != simulate(x0, T, dt=1.0)  # by identity: arrays have no single truth value
