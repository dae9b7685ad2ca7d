"""The circle in angles: dense and Fourier sums against loops, each other, and 60 digits."""

import mpmath
import numpy as np
import pytest
import twins
from hypothesis import given, settings
from hypothesis import strategies as st

from csa_utils import attention, circle, sphere

SEEDS = range(20)
METHODS = pytest.mark.parametrize("method", ["auto", "dense", "fourier"])
MASKS = pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])


def configurations(seed, n):
    """Tokens spread out, in clusters, and in clusters with loners far away."""
    rng = np.random.default_rng(seed)
    spread = rng.uniform(-np.pi, np.pi, n)
    clusters = rng.uniform(-np.pi, np.pi, 5)[rng.integers(5, size=n)] + 1e-3 * rng.standard_normal(n)
    loners = np.where(rng.uniform(size=n) < 0.95, 0.01 * rng.standard_normal(n), rng.uniform(-np.pi, np.pi, n))
    return [spread, clusters, loners]


@METHODS
@MASKS
@pytest.mark.parametrize("beta", [0.0, 1e-3, 1.0, 9.0, 64.0, 1000.0])
def test_the_field_is_that_of_the_loops(beta, causal, method):
    for seed in range(4):
        for phi in configurations(seed, 90):
            found = circle.field(phi, beta=beta, causal=causal, method=method)
            np.testing.assert_allclose(found, twins.circle_field(phi, beta, causal), rtol=0, atol=2e-14)


def test_angles_and_unit_vectors_give_the_same_velocity():
    for seed in SEEDS:
        phi = configurations(seed, 50)[0]
        x = sphere.circle(phi)
        tangent = np.stack([-x[:, 1], x[:, 0]], axis=-1)
        for causal in (True, False):
            ambient = np.sum(tangent * attention.field(x, beta=9.0, causal=causal), axis=-1)
            np.testing.assert_allclose(circle.field(phi, beta=9.0, causal=causal), ambient, rtol=0, atol=2e-15)


def test_dense_and_fourier_sums_agree():
    phi = np.random.default_rng(0).uniform(-np.pi, np.pi, 70)
    dense, fourier = (circle.field(phi, beta=2.0, method=method) for method in ("dense", "fourier"))
    np.testing.assert_allclose(fourier, dense, rtol=0, atol=1e-14)


@METHODS
@MASKS
def test_frozen_tokens_are_first_in_every_sum(causal, method):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        theta, counts, phi = rng.uniform(-3, 3, 4), rng.integers(1, 5, 4), rng.uniform(-3, 3, 30)
        found = circle.field(phi, beta=20.0, causal=causal, frozen=theta, frozen_weights=counts, method=method)
        copies = np.concatenate([np.repeat(theta, counts), phi])
        expected = circle.field(copies, beta=20.0, causal=causal, method="dense")[counts.sum() :]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_dense_keeps_the_digits_of_the_smallest_forces():
    rng = np.random.default_rng(0)
    for beta in (64.0, 170.0):
        for gap in rng.uniform(1.0, 3.1, 20):
            phi = np.array([0.3, 0.3 + gap])
            found = circle.field(phi, beta=beta, method="dense")[1]
            with mpmath.workdps(60):
                delta = mpmath.mpf(phi[0]) - mpmath.mpf(phi[1])
                w = mpmath.exp(beta * (mpmath.cos(delta) - 1))
                expected = w * mpmath.sin(delta) / (1 + w)
            # An angle is known to 4e-16; the exponent multiplies that by beta.
            np.testing.assert_allclose(found, float(expected), rtol=1e-15 * beta * 4)


def test_fourier_alone_loses_them_and_auto_does_not():
    """The choice: Fourier sums where their absolute error cannot matter, never where it can."""
    rng = np.random.default_rng(0)
    which = np.concatenate([rng.integers(2, size=1000), rng.integers(2, 4, size=2000)])
    clusters = np.array([0.0, 1.5, 3.0, -1.6])[which] + 1e-9 * rng.standard_normal(3000)
    dense = circle.field(clusters, beta=64.0, method="dense")
    # The first tokens of the last two clusters feel the first two only, from far away.
    tiny = np.array([np.argmax(which == 2), np.argmax(which == 3)])
    assert np.all((np.abs(dense[tiny]) > 0) & (np.abs(dense[tiny]) < 1e-17))
    fourier = circle.field(clusters, beta=64.0, method="fourier")
    assert np.all(np.abs(fourier[tiny] - dense[tiny]) > 10 * np.abs(dense[tiny]))  # nothing but noise
    auto = circle.field(clusters, beta=64.0, method="auto")
    np.testing.assert_allclose(auto, dense, rtol=1e-6, atol=0)
    np.testing.assert_array_equal(auto[tiny], dense[tiny])


@pytest.mark.parametrize("beta", [4.0, 64.0])
def test_auto_is_within_its_promise_everywhere_and_mostly_fourier_where_it_pays(beta, monkeypatch):
    asked = []
    dense = circle._dense
    monkeypatch.setattr(circle, "_dense", lambda *a: (asked.append(len(a[6])), dense(*a)))
    for seed in range(5):
        spread, clusters, loners = configurations(seed, 4000)
        for phi in (spread, clusters, loners):
            exact = circle.field(phi, beta=beta, method="dense")
            asked.clear()
            auto = circle.field(phi, beta=beta, method="auto")
            error = np.abs(auto - exact)
            assert np.all(error <= circle.RELATIVE * np.abs(exact))
            if phi is spread:
                assert sum(asked) < 40  # 1 % of the tokens
    small = configurations(0, 100)[0]
    np.testing.assert_array_equal(circle.field(small, beta=beta), circle.field(small, beta=beta, method="dense"))


def test_the_error_estimate_of_fourier_sums_holds():
    worst = 0.0
    for seed in SEEDS:
        for beta in (0.5, 9.0, 64.0, 300.0):
            for phi in configurations(seed, 1500):
                error = np.abs(
                    circle.field(phi, beta=beta, method="fourier") - circle.field(phi, beta=beta, method="dense")
                )
                Z = np.tril(np.exp(beta * (np.cos(phi[:, None] - phi) - 1))).sum(axis=1)
                bound = np.finfo(float).eps * np.arange(1, 1501) / Z
                worst = max(worst, (error / (circle.ROUNDINGS * (bound + 4e-16))).max())
    assert worst < 1


@pytest.mark.parametrize("beta", [0.0, 0.01, 1.0, 64.0, 5000.0])
def test_coefficients_are_those_of_the_kernel(beta):
    a = circle.coefficients(beta)
    t = np.linspace(0, np.pi, 300)
    series = a[0] + 2 * np.cos(np.outer(t, np.arange(1, len(a)))) @ a[1:]
    np.testing.assert_allclose(series, np.exp(-2 * beta * np.sin(t / 2) ** 2), rtol=0, atol=1e-14)
    assert len(a) <= 30 + 9 * np.sqrt(beta)
    assert len(circle.coefficients(beta, error=1e-3)) <= len(a)


def test_a_million_tokens():
    phi = np.random.default_rng(0).uniform(-np.pi, np.pi, 1_000_000)
    v = circle.field(phi, beta=9.0)
    for k in (0, 1, 777, 31_415, 999_999):
        w = np.exp(9.0 * (np.cos(phi[: k + 1] - phi[k]) - 1))
        assert v[k] == pytest.approx((w * np.sin(phi[: k + 1] - phi[k])).sum() / w.sum(), abs=1e-12)


def test_batches_are_their_members():
    phi = np.random.default_rng(0).uniform(-3, 3, (2, 3, 10))
    whole = circle.field(phi, beta=2.0)
    assert whole.shape == phi.shape
    for i in np.ndindex(2, 3):
        np.testing.assert_array_equal(whole[i], circle.field(phi[i], beta=2.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"phi": []}, "phi must have shape"),
        ({"phi": 1.0}, "phi must have shape"),
        ({"phi": [0.0, np.nan]}, "phi must be finite, got nan"),
        ({"phi": ["a"]}, "phi must hold real numbers"),
        ({"beta": -1.0}, "beta must be >= 0, got -1"),
        ({"beta": np.inf}, "beta must be finite"),
        ({"beta": [1.0, 2.0]}, "beta must be a single number"),
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"method": "fft"}, "method must be 'auto', 'dense' or 'fourier', got 'fft'"),
        ({"frozen_weights": [1.0]}, "frozen_weights must be left out without"),
        ({"frozen": []}, "frozen must have shape"),
        ({"frozen": [[0.0]]}, "frozen must have shape"),
        ({"frozen": [0.0], "frozen_weights": [1.0, 2.0]}, r"frozen_weights must have shape \(1,\)"),
        ({"frozen": [0.0], "frozen_weights": [0.0]}, "frozen_weights must be > 0, got 0"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        circle.field(**{"phi": [0.0, 1.0]} | arguments)
    for error in (0.0, -1.0, 1.0, np.nan, "x"):
        with pytest.raises(ValueError, match="error must be"):
            circle.coefficients(1.0, error=error)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    phi=st.lists(st.floats(), max_size=6),
    beta=st.floats(),
    method=st.sampled_from(["auto", "dense", "fourier"]),
    causal=st.booleans(),
)
def test_odd_input_is_refused_or_gives_velocities_of_at_most_one(phi, beta, method, causal):
    if method == "fourier" and beta > 1e5:
        beta = 1e5  # O(sqrt(beta)) terms are promised, and are many then
    refused = None
    try:
        v = circle.field(phi, beta=beta, method=method, causal=causal)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert refused.split()[0] in {"phi", "beta"}
        return
    assert np.all(np.abs(v) <= 1 + 1e-9)
