"""Geometry of the sphere against 50-digit arithmetic, integrals and laws of chance."""

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from csa_utils import sphere

SEEDS = range(20)
#: A correct sampler fails a test of chance with this probability, for any choice of seeds.
FALSE_ALARM = 1e-9


def exact_angle(x, y):
    """The angle between two float vectors, by Lagrange's identity at 50 digits."""
    with mp.workdps(50):
        x, y = mp.matrix(x.tolist()), mp.matrix(y.tolist())
        dot, squares = mp.fdot(x, y), mp.fdot(x, x) * mp.fdot(y, y)
        return mp.atan2(mp.sqrt(squares - dot**2), dot)


def pair(separation, d, seed):
    """Two random points at about this distance."""
    rng = np.random.default_rng(seed)
    x, y = sphere.uniform(2, d, rng)
    side = sphere.normalise(sphere.project(x, y))
    return x, sphere.normalise(np.cos(separation) * x + np.sin(separation) * side)


@pytest.mark.parametrize("d", [2, 3, 64])
@pytest.mark.parametrize("separation", [1.0, 1e-3, 1e-6, 1e-9, 1e-12, 1e-15])
def test_distance_of_nearly_equal_and_nearly_opposite_points(separation, d):
    for seed in SEEDS:
        x, y = pair(separation, d, seed)
        exact = float(exact_angle(x, y))
        # Rounding leaves norms that differ by 1e-16 or so, which adds in squares.
        floor = min(4e-16, (4e-16) ** 2 / exact) if exact else 4e-16
        assert abs(sphere.distance(x, y) - exact) <= 1.5e-15 * exact + floor
        assert abs(sphere.distance(x, -y) - float(mp.pi - exact_angle(x, y))) <= 1e-15


@pytest.mark.parametrize("separation", [1e-8, 1e-12, 1e-15, 1e-100, 1e-150])
def test_distance_keeps_all_digits_of_any_separation(separation):
    x, y = np.array([1.0, 0.0]), np.array([1.0, separation])
    assert sphere.distance(x, y) == pytest.approx(separation, rel=1e-15, abs=0)
    assert sphere.distance(-x, y) == np.pi - separation


def test_arccos_would_not_do():
    for seed in SEEDS:
        x, y = pair(1e-9, 3, seed)
        assert sphere.distance(x, y) == pytest.approx(1e-9, rel=1e-6, abs=0)
        assert abs(np.arccos(np.clip(x @ y, -1, 1)) - 1e-9) > 0.9e-9


def test_distance_is_a_metric_that_rotations_keep():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        x, y, z = sphere.uniform(3, 4, rng)
        R, _ = np.linalg.qr(rng.standard_normal((4, 4)))
        assert sphere.distance(x, x) == 0
        assert sphere.distance(x, -x) == np.pi
        assert sphere.distance(x, y) == sphere.distance(y, x)
        assert sphere.distance(x, z) <= sphere.distance(x, y) + sphere.distance(y, z) + 1e-15
        assert sphere.distance(R @ x, R @ y) == pytest.approx(sphere.distance(x, y), abs=2e-15)


@pytest.mark.parametrize("exponent", [0, 1000, -1000])
def test_normalise_does_not_see_the_length(exponent):
    v = np.random.default_rng(0).standard_normal((50, 5))
    x = sphere.normalise(np.ldexp(v, exponent))
    np.testing.assert_array_equal(x, sphere.normalise(v))
    np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1, rtol=0, atol=4e-16)
    np.testing.assert_allclose(x * np.linalg.norm(v, axis=-1, keepdims=True), v, rtol=1e-15)


@pytest.mark.parametrize(
    ("v", "direction"),
    [
        ([3e300, 4e300], [0.6, 0.8]),
        ([-3e-300, 4e-300], [-0.6, 0.8]),
        ([3 * 5e-324, -4 * 5e-324], [0.6, -0.8]),
        ([1.7e308] * 4, [0.5] * 4),
        ([5e-324], [1.0]),
        ([1e300, 1e-300], [1.0, 0.0]),
    ],
)
def test_normalise_at_the_ends_of_the_number_range(v, direction):
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(sphere.normalise(v), direction, rtol=2e-15)


def test_project_gives_the_tangent_part():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        x, y = sphere.uniform(6, 3, rng, batch=(2,)), rng.standard_normal((2, 6, 3))
        p = sphere.project(x, y)
        np.testing.assert_allclose(np.sum(x * p, axis=-1), 0, atol=2e-15)  # tangent
        np.testing.assert_allclose(sphere.project(x, p), p, atol=3e-15)  # idempotent
        np.testing.assert_allclose(sphere.project(x, x), 0, atol=1e-15)  # kills the normal
        np.testing.assert_allclose(y - p, np.sum(x * y, axis=-1, keepdims=True) * x, atol=3e-15)


def test_leading_axes_broadcast():
    x, y = np.split(sphere.uniform(3, 4, np.random.default_rng(0), batch=(4,)), 2)
    distances = sphere.distance(x[:, :, None], y[:, None, :])
    assert distances.shape == (2, 3, 3)
    assert distances[1, 2, 0] == sphere.distance(x[1, 2], y[1, 0])
    np.testing.assert_array_equal(sphere.project(x[0, 0], y)[1, 2], sphere.project(x[0, 0], y[1, 2]))
    assert sphere.circle([[0.0], [1.0]]).shape == (2, 1, 2)


@pytest.mark.parametrize("d", [1, 2, 3, 8, 64])
def test_distances_from_a_fixed_point_follow_the_cap_measure(d):
    for seed in SEEDS:
        x = sphere.uniform(2000, d, np.random.default_rng(seed))
        np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1, rtol=0, atol=5e-16)
        for pole in (np.eye(d)[0], np.full(d, d**-0.5)):
            if d == 1:
                p = stats.binomtest(int(np.sum(x == pole)), len(x)).pvalue
            else:
                p = stats.kstest(sphere.distance(x, pole), lambda r: sphere.cap_measure(r, d)).pvalue
            assert p > FALSE_ALARM / 200


def test_a_projected_cube_is_not_uniform():
    x = sphere.normalise(np.random.default_rng(0).uniform(-1, 1, (20000, 8)))
    diagonal = np.full(8, 8**-0.5)
    p = [
        stats.kstest(sphere.distance(x, e), lambda r: sphere.cap_measure(r, 8)).pvalue for e in (np.eye(8)[0], diagonal)
    ]
    assert min(p) < FALSE_ALARM / 200


@pytest.mark.parametrize("d", [2, 3, 8])
def test_uniform_points_have_mean_zero_isotropic_covariance_and_independent_tokens(d):
    for seed in SEEDS:
        x = sphere.uniform(2, d, np.random.default_rng(seed), batch=(2000,))
        flat = x.reshape(-1, d)
        # n d |mean|² and the squared Frobenius distances are chi-squared for large n.
        assert stats.chi2.sf(len(flat) * d * np.sum(flat.mean(axis=0) ** 2), d) > FALSE_ALARM / 200
        covariance = flat.T @ flat / len(flat) - np.eye(d) / d
        assert (
            stats.chi2.sf(len(flat) * d * (d + 2) / 2 * np.sum(covariance**2), (d - 1) * (d + 2) / 2)
            > FALSE_ALARM / 200
        )
        between = np.einsum("ba,bc->ac", x[:, 0], x[:, 1]) / len(x)
        assert stats.chi2.sf(len(x) * d**2 * np.sum(between**2), d * d) > FALSE_ALARM / 200


def test_uniform_angles_fill_the_circle_evenly():
    for seed in SEEDS:
        phi = sphere.angle(sphere.uniform(3200, 2, np.random.default_rng(seed)))
        counts, _ = np.histogram(phi, bins=32, range=(-np.pi, np.pi))
        assert stats.chisquare(counts).pvalue > FALSE_ALARM / 20


def test_uniform_is_set_by_its_generator():
    draws = [sphere.uniform(3, 2, np.random.default_rng(seed), batch=(4, 5)) for seed in (1, 1, 2)]
    assert draws[0].shape == (4, 5, 3, 2)
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.any(draws[0] == draws[2])


@pytest.mark.parametrize("d", [*range(2, 13), 64, 576])
def test_cap_measure_is_the_integral_of_the_sine_power(d):
    def integral(delta):
        largest = mp.sin(min(delta, mp.pi / 2))  # taken out: quadrature judges absolute errors
        points = [delta * (1 - mp.mpf(4) ** -k) for k in range(6)] + [delta]
        return mp.quad(lambda s: (mp.sin(s) / largest) ** (d - 2), points) * largest ** (d - 2)

    with mp.workdps(20):
        whole = 2 * integral(mp.pi / 2)
        for delta in (1e-3, 0.3, 1.0, 1.5, np.pi / 2, 1.7, 2.5):
            exact = float(integral(mp.mpf(delta)) / whole)
            assert sphere.cap_measure(delta, d) == pytest.approx(exact, rel=2e-15 * np.sqrt(d), abs=1e-300)


@pytest.mark.parametrize(
    ("d", "formula"),
    [
        (1, lambda r: np.where(r == np.pi, 1.0, 0.5)),
        (2, lambda r: r / np.pi),
        (3, lambda r: np.sin(r / 2) ** 2),
        (4, lambda r: (r - np.sin(r) * np.cos(r)) / np.pi),
        (5, lambda r: np.sin(r / 2) ** 4 * (2 + np.cos(r))),
    ],
)
def test_cap_measure_has_the_known_formulas(d, formula):
    r = np.linspace(0, np.pi, 101)
    np.testing.assert_allclose(sphere.cap_measure(r, d), formula(r), rtol=0, atol=1e-15)


@pytest.mark.parametrize("d", [2, 3, 7, 64, 576])
def test_a_cap_and_its_complement_make_the_sphere(d):
    r = np.linspace(0, np.pi, 101)
    share = sphere.cap_measure(r, d)
    np.testing.assert_allclose(share + sphere.cap_measure(np.pi - r, d), 1, rtol=0, atol=1e-13)
    assert np.all(np.diff(share) >= 0)
    assert share[0] == 0
    assert share[-1] == 1
    assert share[50] == pytest.approx(0.5, abs=2e-15)


def test_circle_and_angle_are_inverse():
    phi = np.linspace(-3.14, np.pi, 100)
    np.testing.assert_allclose(sphere.angle(sphere.circle(phi)), phi, rtol=0, atol=5e-16)
    np.testing.assert_allclose(np.linalg.norm(sphere.circle(1e8 * phi), axis=-1), 1, rtol=0, atol=3e-16)
    assert sphere.angle([[-1.0, 0.0], [-1.0, -0.0], [1.0, -0.0]]).tolist() == [np.pi, np.pi, 0.0]
