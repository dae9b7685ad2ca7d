"""The reduced model of leaders against full runs, and what it is made of."""

import numpy as np
import pytest

from csa_utils import leaders, observables, sphere
from csa_utils.simulate import Meeting, simulate

SEEDS = range(20)


def clustered(seed, n=40, beta=25.0, t=400.0, d=2):
    x0 = sphere.uniform(n, d, np.random.default_rng(seed))
    return simulate(x0, [t], beta=beta, tol=1e-8, method="implicit").x[-1]


def test_counts_are_the_tokens_of_earlier_clusters_before_each_leader():
    phi = np.array([0.0, 2.0, 0.0, 2.0, 4.0, 0.0, 2.0, 4.0])
    found = leaders.reduce(sphere.circle(phi), 0.1)
    assert found.index.tolist() == [0, 1, 4]
    assert found.labels.tolist() == [0, 1, 0, 1, 2, 0, 1, 2]
    np.testing.assert_array_equal(found.counts[1, 0], 1)
    np.testing.assert_array_equal(found.counts[2, :2], [2, 2])
    np.testing.assert_array_equal(np.diag(found.counts), 1)
    assert len(found) == 3


def test_leaders_of_exact_clusters_move_as_they_do_among_all_tokens():
    """While clusters are points the reduced model is no approximation for the leaders."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        d = 2 + seed % 3
        centers = sphere.uniform(4, d, rng)
        labels = np.concatenate([[0, 1, 2, 3], rng.integers(4, size=16)])
        x0 = centers[labels]
        Q, K = rng.standard_normal((2, d, d)) / np.sqrt(d)
        full = simulate(x0, [3.0], Q=Q, K=K, beta=4.0, tol=1e-12, method="explicit").x[-1]
        reduced = leaders.reduce(x0, 1e-9)
        run = leaders.simulate(reduced, 3.0, Q=Q, K=K, beta=4.0, radius=1e-9, tol=1e-9)
        np.testing.assert_allclose(run.x, full[reduced.index], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("beta", "d"), [(16.0, 2), (36.0, 2), (25.0, 3)])
def test_merges_happen_when_and_where_they_do_in_full_runs(beta, d):
    compared = 0
    for seed in SEEDS:
        x = clustered(seed, beta=beta, d=d, t=300.0 if d == 2 else 3000.0)
        try:
            reduced = leaders.reduce(x, 1e-3)
        except ValueError:  # still on the way to a cluster
            continue
        if len(reduced) == 1:
            continue
        radius = 0.1 / np.sqrt(beta)
        found = leaders.simulate(reduced, beta=beta)
        events = [*leaders.meetings(reduced.index, radius), Meeting.collapse(len(x), radius)]
        full = simulate(x, [1e300], beta=beta, events=events, tol=1e-6, method="implicit")
        time, into = leaders.merges(full.events[:-1], len(reduced))
        np.testing.assert_array_equal(found.into, into)
        late = time > 1e3  # earlier merges still feel how far apart the tokens of a cluster are
        np.testing.assert_allclose(np.log10(found.time[late]), np.log10(time[late]), rtol=0, atol=2e-2)
        compared += late.sum()
        assert found.end == pytest.approx(np.nanmax(found.time), rel=0.5)
    assert compared >= 10


def test_one_cluster_is_done_at_once():
    one = leaders.reduce(np.tile([1.0, 0.0], (5, 1)), 0.1)
    run = leaders.simulate(one, beta=4.0)
    assert (len(run.time), run.end, run.steps) == (0, 0, 0)


def test_a_run_may_end_before_the_last_merge():
    x = sphere.circle(np.array([0.0, 3.0, 1.5, 0.0]))
    run = leaders.simulate(leaders.reduce(x, 0.1), 10.0, beta=64.0)
    assert run.end == 10
    assert np.all(np.isnan(run.time))
    assert run.into.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: leaders.reduce(x[None], 0.1), r"x must have shape \(n, d\)"),
        (lambda x: leaders.reduce(x, 0.0), "radius must be finite and > 0"),
        (lambda x: leaders.reduce(sphere.circle(np.linspace(0, 1, 20)), 0.1), "x must be clustered"),
        (lambda x: leaders.meetings([0, 0], 0.1), "index must be increasing"),
        (lambda x: leaders.meetings([0.5], 0.1), "index must be a whole number"),
        (lambda x: leaders.merges([1.0], 3), r"times must have shape \(3,\)"),
        (lambda x: leaders.simulate(x, 1.0), "leaders must be Leaders"),
        (lambda x: leaders.simulate(leaders.reduce(x, 0.1), -1.0), "end must be finite and > 0"),
        (lambda x: leaders.simulate(leaders.reduce(x, 0.1), beta=0.0), "beta must be a single number > 0"),
        (lambda x: leaders.simulate(leaders.reduce(x, 0.1), beta=[1.0, 2.0]), "beta must be a single number > 0"),
        (lambda x: leaders.simulate(leaders.reduce(x, 0.1), V=np.ones((2, 2, 2))), "Q, K and V must have no batch"),
        (lambda x: leaders.simulate(leaders.reduce(x, 0.1), V=np.ones((3, 3))), "V must be 2 x 2"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(sphere.circle(np.array([0.0, 2.0])))


def test_the_labels_are_those_of_the_clusters():
    x = clustered(0)
    np.testing.assert_array_equal(leaders.reduce(x, 0.05).labels, observables.clusters(x, 0.05))
