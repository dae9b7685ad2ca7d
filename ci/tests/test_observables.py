"""Diameter, clusters, collapse and distances on configurations one can check by hand."""

import mpmath as mp
import numpy as np
import pytest

from csa_utils import observables, sphere

SEEDS = range(20)


def test_distances_are_symmetric_with_zero_diagonal():
    phi = np.array([0.0, 0.5, 3.0, -3.0])
    expected = np.abs(phi[:, None] - phi)
    expected = np.minimum(expected, 2 * np.pi - expected)
    found = observables.distances(sphere.circle(phi))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(found, found.T)
    assert not np.any(np.diag(found))


@pytest.mark.parametrize(
    ("phi", "diameter"),
    [([1.0], 0.0), ([1.0, 1.0], 0.0), ([0.0, 0.25, -0.5], 0.75), ([0.0, 3.0, -3.0], 3.0), ([0.0, 0.1, np.pi], np.pi)],
)
def test_diameter_by_hand(phi, diameter):
    assert observables.diameter(sphere.circle(phi)) == pytest.approx(diameter, abs=1e-15)


def test_diameter_of_a_batch_is_the_largest_of_all_distances():
    x = sphere.uniform(7, 3, np.random.default_rng(0), batch=(4, 5))
    assert observables.distances(x).shape == (4, 5, 7, 7)
    np.testing.assert_array_equal(observables.diameter(x), observables.distances(x).max(axis=(-2, -1)))


def test_diameter_sees_separations_far_below_the_root_of_rounding():
    assert observables.diameter([[1.0, 0.0], [1.0, 1e-14]]) == pytest.approx(1e-14, rel=1e-15, abs=0)


@pytest.mark.parametrize(
    ("phi", "radius", "labels"),
    [
        ([0.0], 0.1, [0]),
        ([0.0, 1.0, 2.0], 0.1, [0, 1, 2]),
        ([0.0, 1.0, 0.05, 1.05, -0.05], 0.1, [0, 1, 0, 1, 0]),
        ([3.0, 1.0, 2.0, 1.0, 3.0, 2.0], 0.1, [0, 1, 2, 1, 0, 2]),  # numbered by first token
        ([0.0, 0.5, 1.0, 1.5, 2.0], 0.51, [0, 0, 0, 0, 0]),  # a chain hangs together
        ([0.0, 1.0, 0.5], 0.51, [0, 0, 0]),  # a later token joins two earlier ones
        ([0.0, 0.5, 1.0, 1.5, 2.0], 0.49, [0, 1, 2, 3, 4]),
        ([3.1, -3.1], 0.1, [0, 0]),  # across the cut of the angle
        ([0.0, np.pi], 3.0, [0, 1]),
        ([0.0, np.pi], 3.15, [0, 0]),
    ],
)
def test_clusters_by_hand(phi, radius, labels):
    x = sphere.circle(phi)
    assert observables.clusters(x, radius).tolist() == labels
    assert observables.number_of_clusters(x, radius) == max(labels) + 1
    assert observables.leaders(labels).tolist() == [labels.index(i) for i in range(max(labels) + 1)]


def test_the_radius_itself_counts_as_near():
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    radius = float(sphere.distance(*x))
    assert observables.number_of_clusters(x, radius) == 1
    assert observables.number_of_clusters(x, np.nextafter(radius, 0)) == 2


def test_clusters_do_not_depend_on_order_or_rotation():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        x, p = sphere.uniform(12, 3, rng), rng.permutation(12)
        R, _ = np.linalg.qr(rng.standard_normal((3, 3)))
        labels, moved = observables.clusters(x, 0.6), observables.clusters(x[p] @ R.T, 0.6)
        np.testing.assert_array_equal(labels[p][:, None] == labels[p], moved[:, None] == moved)
        leaders = observables.leaders(labels)
        assert labels[leaders].tolist() == list(range(len(leaders)))
        assert leaders[0] == 0
        assert all(leaders[c] <= k for k, c in enumerate(labels))


def test_clusters_of_a_batch_are_those_of_its_members():
    x = sphere.uniform(6, 2, np.random.default_rng(0), batch=(3, 4))
    labels, count = observables.clusters(x, 0.4), observables.number_of_clusters(x, 0.4)
    assert labels.shape == (3, 4, 6)
    for i in np.ndindex(3, 4):
        np.testing.assert_array_equal(labels[i], observables.clusters(x[i], 0.4))
        assert count[i] == len(observables.leaders(labels[i]))


def two_tokens_apart(separations):
    """Pairs of tokens on the circle at these separations, shape (..., 2, 2)."""
    phi = np.asarray(separations, dtype=float)
    return sphere.circle(np.stack([0 * phi, phi], axis=-1))


@pytest.mark.parametrize(
    ("separations", "time"),
    [
        ([1.0, 0.5, 0.05, 0.01], 2.0),
        ([0.05, 0.04, 0.03, 0.02], 0.0),  # from the start
        ([1.0, 0.9, 0.8, 0.7], np.inf),  # never
        ([1.0, 0.05, 1.0, 0.05], 3.5),  # it opened again
        ([0.05, 0.05, 0.05, 1.0], np.inf),  # closed, but not at the end
    ],
)
def test_collapse_time_is_the_last_closing(separations, time):
    assert observables.collapse_time([0.0, 1.0, 2.0, 3.5], two_tokens_apart(separations), 0.1) == time


def test_collapse_time_of_a_batch():
    x = two_tokens_apart([[1.0, 0.05, 1.0], [0.05, 0.05, 1.0]])
    assert observables.collapse_time([1.0, 2.0], x, 0.1).tolist() == [2.0, 1.0, np.inf]


@pytest.mark.parametrize("angle", [1e-300, 1e-100, 1e-14, 1e-8, 1e-3, 1.0, np.pi / 2 - 1e-3])
def test_distance_to_a_coordinate_plane_keeps_all_digits(angle):
    x = [np.cos(angle) * 0.6, np.cos(angle) * 0.8, np.sin(angle)]
    plane, line = np.eye(3)[:, :2], np.eye(3)[:, 2:]
    if angle > 1e-150:  # below, the square in the norm underflows
        assert observables.distance_to_subspace(x, plane) == pytest.approx(angle, rel=1e-15, abs=0)
    assert observables.distance_to_subspace(x, line) == pytest.approx(np.pi / 2 - angle, abs=4e-16)


@pytest.mark.parametrize("angle", [1e-14, 1e-12, 1e-8, 1e-3, 1.0])
def test_distance_to_a_subspace_against_50_digits(angle):
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        d, m = 5, 1 + seed % 4
        basis, other = np.split(np.linalg.qr(rng.standard_normal((d, d)))[0], [m], axis=1)
        inside, outside = (sphere.normalise(B @ rng.standard_normal(B.shape[1])) for B in (basis, other))
        x = sphere.normalise(np.cos(angle) * inside + np.sin(angle) * outside)
        with mp.workdps(50):
            B, y = mp.matrix(basis.tolist()), mp.matrix(x.tolist())
            part = B * mp.lu_solve(B.T * B, B.T * y)
            exact = float(mp.atan2(mp.norm(y - part), mp.norm(part)))
        found = observables.distance_to_subspace(x, basis)
        assert found == pytest.approx(exact, rel=1e-15, abs=2e-15)
        assert found == pytest.approx(angle, rel=1e-15, abs=2e-15)


def test_distance_to_the_whole_space_is_zero_and_batches_pass():
    x = sphere.uniform(4, 3, np.random.default_rng(0), batch=(2,))
    assert not np.any(observables.distance_to_subspace(x, np.eye(3)))
    found = observables.distance_to_subspace(x, np.eye(3)[:, :1])
    assert found.shape == (2, 4)
    pole = np.eye(3)[0]
    np.testing.assert_allclose(found, np.minimum(sphere.distance(x, pole), sphere.distance(x, -pole)), atol=1e-15)
