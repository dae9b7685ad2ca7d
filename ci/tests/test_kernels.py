"""Compiled fields against slow twins and 50 digits; linearised steps against dense algebra."""

import subprocess
import sys
import threading
from pathlib import Path

import mpmath
import numpy as np
import pytest
import twins
from hypothesis import given, settings
from hypothesis import strategies as st

from csa_utils import attention, kernels, sphere
from csa_utils.attention import Dynamics
from csa_utils.compiled import exp

SEEDS = range(20)
MASKS = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


def random_system(seed, n, d, beta=3.0, scale=1.0):
    rng = np.random.default_rng(seed)
    Q, K, V = scale * rng.standard_normal((3, d, d)) / np.sqrt(d)
    return sphere.uniform(n, d, rng), {"Q": Q, "K": K, "V": V, "beta": beta}


def test_exp_is_right_to_the_last_digit_or_two():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-708, 0, 4000), -(10.0 ** rng.uniform(-20, 2.8, 4000)), rng.uniform(0, 700, 500)])
    with mpmath.workdps(30):
        worst = max(abs(mpmath.mpf(exp(v)) / mpmath.exp(mpmath.mpf(v)) - 1) for v in x)
    assert worst < 5e-16
    assert exp(0.0) == exp(-0.0) == 1
    assert [exp(v) for v in (-708.5, -1e5, -1e300, -np.inf)] == [0, 0, 0, 0]


@MASKS
@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 3), (9, 1), (40, 2), (40, 3), (30, 4), (30, 7), (140, 16)])
def test_the_field_is_that_of_the_loops(n, d, causal):
    for seed in SEEDS if n < 100 else (0, 1):
        x, parameters = random_system(seed, n, d, beta=[0.0, 1.0, 9.0][seed % 3])
        expected = twins.field_by_loops(x, **parameters, causal=causal)
        np.testing.assert_allclose(attention.field(x, **parameters, causal=causal), expected, rtol=0, atol=3e-15)


@MASKS
@pytest.mark.parametrize("d", [2, 3, 5])
def test_frozen_tokens_come_first_and_count_as_often_as_they_say(d, causal):
    for seed in SEEDS:
        x, parameters = random_system(seed, 8, d)
        rng = np.random.default_rng(seed)
        frozen, counts = sphere.uniform(3, d, rng), rng.uniform(0.5, 4, 3)
        extra = {"frozen": frozen, "frozen_weights": counts, "causal": causal}
        v = attention.field(x, **parameters, **extra)
        expected = twins.field_by_loops(x, **parameters, **extra)
        np.testing.assert_allclose(v, expected, rtol=0, atol=3e-15)
        np.testing.assert_allclose(twins.field(Dynamics(d, **parameters, **extra), x), expected, rtol=0, atol=3e-15)
        # A frozen token of weight 2 is the same token twice.
        twice = attention.field(x, **parameters, causal=causal, frozen=frozen[[0, 0, 1]])
        np.testing.assert_allclose(
            attention.field(x, **parameters, causal=causal, frozen=frozen[:2], frozen_weights=[2, 1]), twice, atol=3e-15
        )


@pytest.mark.parametrize("beta", [1.0, 64.0, 1000.0])
def test_the_field_has_the_digits_that_50_digit_arithmetic_gives(beta):
    for seed, d in enumerate([2, 3, 5, 8]):
        x, parameters = random_system(seed, 10, d, beta=beta)
        v = attention.field(x, **parameters)
        with mpmath.workdps(50):
            X, Q, K, V = (mpmath.matrix(a.tolist()) for a in (x, *(parameters[k] for k in "QKV")))
            for k in range(10):
                xk = X[k, :].T
                logits = [beta * ((Q * xk).T * (K * X[j, :].T))[0] for j in range(k + 1)]
                top = max(logits)
                w = [mpmath.exp(logit - top) for logit in logits]
                a = sum((w[j] * (V * X[j, :].T) for j in range(k + 1)), mpmath.zeros(d, 1)) / mpmath.fsum(w)
                a -= (a.T * xk)[0] / (xk.T * xk)[0] * xk
                np.testing.assert_allclose(v[k], [float(e) for e in a], rtol=0, atol=2.5e-14 * max(1, beta / 60))


@pytest.mark.parametrize("d", [2, 3, 5])
def test_the_own_logit_may_be_the_smallest(d):
    """Q = -I, beta = 1000: logits differ by up to 2000, more than exponentials can."""
    for seed in SEEDS:
        x = sphere.uniform(12, d, np.random.default_rng(seed))
        for causal in (True, False):
            dynamics = Dynamics(d, Q=-np.eye(d), beta=1000.0, causal=causal)
            np.testing.assert_allclose(dynamics.field(x), twins.field(dynamics, x), rtol=0, atol=1e-12)


def test_a_force_of_1e_55_keeps_its_digits():
    # Two clusters opposite each other but for a degree: beta = 64 gives forces of 1e-56.
    for d in (2, 3, 4):
        base = np.zeros((2, d))
        base[0, 0], base[1, 0], base[1, 1] = 1, np.cos(np.radians(179)), np.sin(np.radians(179))
        v = attention.field(base, beta=64.0)
        with mpmath.workdps(60):
            x = [[mpmath.mpf(c) for c in row] for row in base.tolist()]
            inner = mpmath.fsum(a * b for a, b in zip(*x, strict=True))
            square = mpmath.fsum(a * a for a in x[1])
            w = mpmath.exp(64 * (inner - square))
            expected = [w / (1 + w) * (a - inner / square * b) for a, b in zip(*x, strict=True)]
        assert 1e-60 < np.linalg.norm(v[1]) < 1e-54
        np.testing.assert_allclose(v[1], [float(e) for e in expected], rtol=1e-12)
        np.testing.assert_array_equal(v[0], 0)


@MASKS
@pytest.mark.parametrize(("n", "d"), [(700, 2), (700, 3), (500, 5), (600, 20)])
def test_many_cores_give_what_one_core_gives(n, d, causal):
    x, parameters = random_system(0, n, d)
    B = parameters["beta"] * parameters["Q"].T @ parameters["K"]
    system = kernels.make_system(B, parameters["V"], causal=causal, shift=0.3)
    one, many = np.empty_like(x), np.empty_like(x)
    kernels.velocity(x, system, one)
    kernels.velocity_parallel(x, system, many)
    np.testing.assert_allclose(many, one, rtol=0, atol=1e-15)
    np.testing.assert_allclose(one, twins.field(Dynamics(d, **parameters, causal=causal), x), rtol=0, atol=3e-15)


def test_a_batch_of_large_systems_is_its_members():
    rng = np.random.default_rng(0)
    x, V = sphere.uniform(300, 3, rng, batch=(4,)), rng.standard_normal((4, 3, 3))
    whole = attention.field(x, V=V, beta=2.0)
    for i in range(4):
        np.testing.assert_allclose(whole[i], attention.field(x[i], V=V[i], beta=2.0), rtol=0, atol=1e-15)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_twenty_thousand_tokens_take_little_memory():
    script = (
        "import numpy as np; from csa_utils import attention, sphere\n"
        "def peak(): return next(s.split()[1] for s in open('/proc/self/status') if s.startswith('VmHWM'))\n"
        "x = sphere.uniform(20000, 3, np.random.default_rng(0)); attention.field(x[:700], beta=9.0)\n"
        "before = peak(); attention.field(x, beta=9.0); print(before, peak())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = (int(k) / 1024 for k in done.stdout.split())  # MB
    assert after - before < 30
    assert after < 300  # with the interpreter, numpy, scipy and numba


def dense_jacobian(x, system):
    """Jacobian of the velocity on tangent vectors, by differences in the chart of the solvers."""
    n, d = x.shape
    J = np.zeros((n, d, n, d))
    for j, b in np.ndindex(n, d):
        e = np.zeros((n, d))
        e[j, b] = 1
        e -= np.sum(e * x, axis=-1, keepdims=True) * x
        sides = []
        for sign in (1, -1):
            y = x + sign * 1e-6 * e
            norm = np.linalg.norm(y, axis=-1, keepdims=True)
            F = np.empty_like(x)
            kernels.velocity(y / norm, system, F)
            sides.append(norm * (F - np.sum(x * F, axis=-1, keepdims=True) * y))
        J[:, :, j, b] = (sides[0] - sides[1]) / 2e-6
    return J.reshape(n * d, n * d)


@pytest.mark.parametrize("linearise", [kernels.linearise, kernels.linearise_parallel], ids=["one core", "all cores"])
@pytest.mark.parametrize("frozen", [0, 2])
@pytest.mark.parametrize("d", [2, 3, 5, 9])
def test_a_linear_step_solves_the_dense_system(d, frozen, linearise):
    n = 6
    for seed in SEEDS:
        x, p = random_system(seed, n, d)
        rng = np.random.default_rng(seed)
        mass = rng.uniform(0.5, 3, (n, n) if seed % 2 else n) if frozen else None
        system = kernels.make_system(3 * p["Q"].T @ p["K"], p["V"], causal=True, frozen=frozen, mass=mass, shift=0.7)
        m = 1 if d == 2 else d
        work, f, F = kernels.make_work(n, d), np.empty((n, m)), np.empty((n, d))
        linearise(x, system, work, f)
        kernels.velocity(x, system, F)
        tangent = np.stack([-x[:, 1], x[:, 0]], axis=-1)[..., None] if d == 2 else np.tile(np.eye(d), (n, 1, 1))
        np.testing.assert_allclose(np.einsum("kab,kb->ka", tangent, f), F, rtol=0, atol=2e-15)
        J = dense_jacobian(x, system)
        r = rng.standard_normal((n, m))
        if d > 2:
            r -= np.sum(r * x, axis=-1, keepdims=True) * x
        for step in (0.05, 0.3):
            u = r.copy()
            kernels.solve(step, True, system, work, u)
            ambient, right = (np.einsum("kab,kb->ka", tangent, a).ravel() for a in (u, r))
            np.testing.assert_allclose(ambient - step * J @ ambient, right, rtol=0, atol=1e-7 * np.abs(ambient).max())
            again = r.copy()
            kernels.solve(step, False, system, work, again)
            np.testing.assert_array_equal(again, u)


def test_threads_may_call_at_the_same_time():
    x, parameters = random_system(0, 900, 3)
    expected = attention.field(x, **parameters)
    found = [None] * 4

    def call(i):
        for _ in range(5):
            found[i] = attention.field(x, **parameters)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=60)
    for v in found:
        np.testing.assert_array_equal(v, expected)


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    shape=st.tuples(st.integers(0, 6), st.integers(0, 5)),
    entries=st.lists(numbers, min_size=1, max_size=8),
    beta=numbers,
    scale=st.floats(-1e308, 1e308),
    normalise=st.booleans(),
)
def test_odd_input_is_refused_or_gives_finite_tangent_velocities(shape, entries, beta, scale, normalise):
    with np.errstate(all="ignore"):
        x = np.resize(np.array(entries), shape)
        if normalise and x.size:
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        V = scale * np.resize(np.array(entries[::-1]), (shape[1], shape[1]))
    refused = None
    try:
        v = attention.field(x, V=V, beta=beta)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert refused.split()[0] in {"x", "V", "beta"}
        return
    assert np.all(np.isfinite(v))
    assert np.abs(np.sum(v * x, axis=-1)).max() <= 1e-13 * np.abs(V).max()
