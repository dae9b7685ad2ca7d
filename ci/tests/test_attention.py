"""The field of (CSA) and (SA) against slow loops, 50 digits, symmetries and hand calculations."""

import math

import mpmath as mp
import numpy as np
import pytest
import twins

from csa_utils import attention, sphere

SEEDS = range(20)
MASKS = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


def random_system(seed, n=6, d=3, beta=2.0):
    """Tokens and parameters with nothing special about them: V is not symmetric."""
    rng = np.random.default_rng(seed)
    Q, K, V = rng.standard_normal((3, d, d))
    return sphere.uniform(n, d, rng), {"Q": Q, "K": K, "V": V, "beta": beta}


def without_V(parameters):
    return {name: value for name, value in parameters.items() if name != "V"}


def slow_twin(x, Q, K, V, beta, causal):
    """Weights, output and field as the paper writes them, one number at a time."""
    n, d = x.shape

    def apply(M, y):
        return [sum(M[a][b] * y[b] for b in range(d)) for a in range(d)]

    def dot(y, z):
        return sum(y[a] * z[a] for a in range(d))

    w, a, f = np.zeros((n, n)), np.zeros((n, d)), np.zeros((n, d))
    for k in range(n):
        seen = range(k + 1) if causal else range(n)
        for j in seen:
            w[k, j] = math.exp(beta * dot(apply(Q, x[k]), apply(K, x[j])))
        w[k] /= sum(w[k])
        for j in seen:
            a[k] += w[k, j] * np.array(apply(V, x[j]))
        f[k] = a[k] - dot(a[k], x[k]) * x[k]
    return w, a, f


def exact_weights(x, Q, K, beta, causal):
    with mp.workdps(50):
        x, Q, K = (mp.matrix(M.tolist()) for M in (x, Q, K))
        logits = mp.mpf(beta) * (x * Q.T) * (K * x.T)
        w = np.zeros((x.rows, x.rows))
        for k in range(x.rows):
            row = [mp.exp(logits[k, j]) if j <= k or not causal else mp.mpf(0) for j in range(x.rows)]
            w[k] = [float(e / mp.fsum(row)) for e in row]
    return w


@MASKS
def test_weights_output_and_field_are_the_formula(causal):
    for seed in SEEDS:
        x, parameters = random_system(seed, n=5 + seed % 3, d=2 + seed % 4)
        w, a, f = slow_twin(x, **parameters, causal=causal)
        np.testing.assert_allclose(attention.weights(x, **without_V(parameters), causal=causal), w, atol=1e-13)
        np.testing.assert_allclose(attention.output(x, **parameters, causal=causal), a, atol=1e-12)
        np.testing.assert_allclose(attention.field(x, **parameters, causal=causal), f, atol=1e-12)


def test_left_out_matrices_are_the_identity():
    x, _ = random_system(0)
    I = np.eye(3)
    np.testing.assert_array_equal(attention.field(x, beta=3), attention.field(x, Q=I, K=I, V=I, beta=3.0, causal=True))
    np.testing.assert_array_equal(attention.field(x), attention.field(x, beta=1.0))


@MASKS
@pytest.mark.parametrize("beta", [0.0, 1.0, 1e3, 1e6, 1e200])
def test_rows_of_weights_sum_to_one_and_respect_the_mask(beta, causal):
    for seed in SEEDS:
        x, parameters = random_system(seed, beta=beta)
        w = attention.weights(x, **without_V(parameters), causal=causal)
        assert np.all(w >= 0)
        np.testing.assert_allclose(w.sum(axis=-1), 1, rtol=0, atol=1e-15)
        if causal:
            assert not np.any(np.triu(w, 1))
            np.testing.assert_array_equal(w[0], np.eye(6)[0])


@pytest.mark.parametrize("beta", [1.0, 1e3, 1e6])
def test_weights_are_stable_when_the_largest_logit_is_off_the_diagonal(beta):
    for seed in SEEDS:
        x, parameters = random_system(seed, n=5)
        for Q, K in ((parameters["Q"], parameters["K"]), (-np.eye(3), np.eye(3))):
            with np.errstate(over="raise", invalid="raise", divide="raise"):
                w = attention.weights(x, Q=Q, K=K, beta=beta)
            # A logit is known to its own rounding, and a weight to that times the weight.
            tolerance = 4e-16 * beta * np.linalg.norm(Q, 2) * np.linalg.norm(K, 2) + 1e-15
            np.testing.assert_allclose(w, exact_weights(x, Q, K, beta, True), rtol=0, atol=tolerance)


def test_for_Q_minus_identity_the_diagonal_has_the_smallest_logit():
    # Subtracting the diagonal instead of the row maximum would overflow.
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        w = attention.weights(x, Q=-np.eye(2), beta=1e6)
    np.testing.assert_array_equal(w, [[1, 0], [1, 0]])


def test_the_first_k_tokens_ignore_the_later_ones():
    for seed in SEEDS:
        x, parameters = random_system(seed)
        y = np.concatenate([x[:4], sphere.uniform(2, 3, np.random.default_rng(seed + 1000))])
        f = attention.field(x, **parameters)
        np.testing.assert_allclose(attention.field(x[:4], **parameters), f[:4], rtol=0, atol=1e-14)
        np.testing.assert_array_equal(attention.field(y, **parameters)[:4], f[:4])
        full = [attention.field(z, **parameters, causal=False)[:4] for z in (x, y)]
        assert np.abs(full[0] - full[1]).max() > 1e-6


@MASKS
def test_rotating_tokens_and_matrices_rotates_the_field(causal):
    for seed in SEEDS:
        x, parameters = random_system(seed)
        R, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))
        turned = {name: R @ parameters[name] @ R.T for name in "QKV"} | {"beta": parameters["beta"]}
        f = attention.field(x, **parameters, causal=causal)
        np.testing.assert_allclose(attention.field(x @ R.T, **turned, causal=causal), f @ R.T, atol=1e-13)


@MASKS
def test_permuting_tokens_permutes_the_field_only_without_the_mask(causal):
    for seed in SEEDS:
        x, parameters = random_system(seed)
        f = attention.field(x, **parameters, causal=causal)
        difference = np.abs(attention.field(x[::-1], **parameters, causal=causal) - f[::-1]).max()
        assert (difference > 1e-3) if causal else (difference < 1e-13)


@MASKS
def test_a_lone_token_feels_its_own_value(causal):
    for seed in SEEDS:
        x, parameters = random_system(seed, n=1)
        Vx = parameters["V"] @ x[0]
        expected = Vx - (Vx @ x[0]) * x[0]
        np.testing.assert_allclose(attention.field(x, **parameters, causal=causal), [expected], atol=2e-15)


def test_two_tokens_by_hand():
    x, beta = np.eye(2), 0.7
    V = np.array([[1.0, 2.0], [3.0, 4.0]])
    w = 1 / (1 + math.exp(beta))  # weight of e_1 for e_2: logits 0 and beta
    a = w * V[:, 0] + (1 - w) * V[:, 1]  # V e_1 and V e_2 are the columns
    np.testing.assert_allclose(attention.output(x, V=V, beta=beta), [V[:, 0], a], rtol=1e-15)
    np.testing.assert_allclose(attention.field(x, V=V, beta=beta), [[0, 3], [a[0], 0]], rtol=1e-15)


def test_queries_are_of_the_token_itself_and_keys_of_the_others():
    Q, K = np.array([[0.0, 2.0], [0.0, 0.0]]), np.array([[3.0, 0.0], [0.0, 0.0]])
    # Q e_2 = 2 e_1, K e_1 = 3 e_1, K e_2 = 0: the logits of e_2 are 6 beta and 0.
    w = attention.weights(np.eye(2), Q=Q, K=K, beta=0.5)
    np.testing.assert_allclose(w[1], np.array([math.exp(3), 1]) / (1 + math.exp(3)), rtol=1e-15)


@MASKS
def test_the_field_is_tangent_and_vanishes_at_a_cluster_if_V_is_the_identity(causal):
    for seed in SEEDS:
        x, parameters = random_system(seed)
        np.testing.assert_allclose(np.sum(x * attention.field(x, **parameters, causal=causal), axis=-1), 0, atol=3e-15)
        cluster = np.broadcast_to(x[0], x.shape)
        np.testing.assert_allclose(attention.field(cluster, **parameters | {"V": None}, causal=causal), 0, atol=1e-15)


@pytest.mark.parametrize("beta", [0.0, 1.0, 9.0, 64.0])
def test_on_the_circle_the_field_is_the_sum_of_h(beta):
    def h(x):
        return np.exp(beta * (np.cos(x) - 1)) * np.sin(x)

    for seed in SEEDS:
        phi = np.random.default_rng(seed).uniform(-np.pi, np.pi, 7)
        x = sphere.circle(phi)
        tangent = np.stack([-np.sin(phi), np.cos(phi)], axis=-1)
        Z = [sum(np.exp(beta * (np.cos(phi[k] - phi[j]) - 1)) for j in range(k + 1)) for k in range(7)]
        speed = [sum(h(phi[j] - phi[k]) for j in range(k)) / Z[k] for k in range(7)]
        np.testing.assert_allclose(np.sum(tangent * attention.field(x, beta=beta), axis=-1), speed, rtol=0, atol=3e-14)


def differences(dynamics, x, step=1e-5):
    """Central differences of the field's formula, which is smooth off the sphere too."""
    J = np.empty((*x.shape, *x.shape[-2:]))
    for j, b in np.ndindex(x.shape[-2:]):
        e = np.zeros(x.shape)
        e[..., j, b] = step
        J[..., j, b] = (twins.field(dynamics, x + e) - twins.field(dynamics, x - e)) / (2 * step)
    return J


@MASKS
def test_jacobian_agrees_with_differences(causal):
    for seed in SEEDS:
        x, parameters = random_system(seed, n=4, d=2 + seed % 3, beta=1.5)
        J = attention.jacobian(x, **parameters, causal=causal)
        assert J.shape == (*x.shape, *x.shape)
        expected = differences(attention.Dynamics(x.shape[-1], **parameters, causal=causal), x)
        np.testing.assert_allclose(J, expected, rtol=0, atol=1e-8 * max(1, np.abs(J).max()))


@MASKS
def test_jacobian_of_a_batch_is_that_of_its_members(causal):
    rng = np.random.default_rng(0)
    x, V, beta = sphere.uniform(4, 3, rng), rng.standard_normal((2, 1, 3, 3)), np.array([0.5, 1.0, 2.0])
    Q, K = rng.standard_normal((3, 3, 3)), rng.standard_normal((3, 3))
    J = attention.jacobian(x, Q=Q, K=K, V=V, beta=beta, causal=causal)
    assert J.shape == (2, 3, 4, 3, 4, 3)
    for a, b in np.ndindex(2, 3):
        alone = attention.jacobian(x, Q=Q[b], K=K, V=V[a, 0], beta=beta[b], causal=causal)
        np.testing.assert_allclose(J[a, b], alone, rtol=0, atol=1e-14)


@MASKS
def test_jacobian_is_block_lower_triangular_under_the_mask(causal):
    x, parameters = random_system(0)
    J = attention.jacobian(x, **parameters, causal=causal)
    above = [np.abs(J[k, :, j]).max() for k in range(6) for j in range(k + 1, 6)]
    below = [np.abs(J[k, :, j]).max() for k in range(6) for j in range(k + 1)]
    assert min(below) > 0
    assert (max(above) == 0) if causal else (min(above) > 0)


def test_a_cluster_attracts_at_the_rates_one_half_two_thirds_and_so_on():
    # V = I: on tangent vectors delta_k' = mean_{j<=k} delta_j - delta_k, whatever Q, K and beta.
    n, d = 5, 3
    for seed in SEEDS:
        x, parameters = random_system(seed, n=1, d=d)
        J = attention.jacobian(np.broadcast_to(x[0], (n, d)), **parameters | {"V": None})
        tangent = np.linalg.qr(x.T, mode="complete")[0][:, 1:]
        mean = np.tri(n) / np.arange(1, n + 1)[:, None] - np.eye(n)
        restricted = np.einsum("ap,kajb,bq->kjpq", tangent, J, tangent)
        np.testing.assert_allclose(restricted, mean[..., None, None] * np.eye(d - 1), atol=2e-15)
        np.testing.assert_allclose(np.diag(mean), [-(k - 1) / k for k in range(1, n + 1)], rtol=1e-15)


@MASKS
def test_batch_axes_broadcast(causal):
    rng = np.random.default_rng(0)
    x, V, beta = sphere.uniform(5, 3, rng, batch=(2, 1)), rng.standard_normal((4, 3, 3)), [[0.5], [8.0]]
    f = attention.field(x, V=V, beta=beta, causal=causal)
    assert f.shape == (2, 4, 5, 3)
    for a, b in np.ndindex(2, 4):
        alone = attention.field(x[a, 0], V=V[b], beta=beta[a][0], causal=causal)
        np.testing.assert_allclose(f[a, b], alone, rtol=0, atol=1e-15)


def test_dynamics_keep_their_own_copy_of_the_parameters():
    x, parameters = random_system(0)
    dynamics = attention.Dynamics(3, **parameters)
    before = dynamics.field(x)
    parameters["V"][:] = 0
    np.testing.assert_array_equal(dynamics.field(x), before)
    with pytest.raises(ValueError, match="read-only"):
        dynamics.V[0, 0] = 1.0
    assert dynamics.batch == ()
    assert attention.Dynamics(3, V=np.ones((2, 1, 3, 3)), beta=[1.0, 2.0]).batch == (2, 2)
