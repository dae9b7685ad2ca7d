"""Figures: they put things where they belong, and refuse what they cannot draw."""

import matplotlib as mpl

mpl.use("Agg")  # no screen in CI

import matplotlib.pyplot as plt
import numpy as np
import pytest

from csa_utils import plots, sphere, style


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


@pytest.fixture(autouse=True)
def usual_settings():
    with mpl.rc_context():
        yield


def test_the_view_keeps_angles_and_depth():
    x = sphere.uniform(50, 3, np.random.default_rng(0))
    picture, depth = plots.view(x, azimuth=20, elevation=40)
    # two picture axes and the depth are an orthonormal frame
    assert np.allclose(np.sum(picture**2, axis=-1) + depth**2, 1, atol=1e-14)
    assert np.linalg.det(np.linalg.lstsq(x, np.column_stack([picture, depth]), rcond=None)[0]) == pytest.approx(1)


def test_the_viewer_stands_where_the_angles_say():
    a, e = np.radians(20), np.radians(40)
    viewer = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    picture, depth = plots.view(viewer, azimuth=20, elevation=40)
    assert np.allclose(picture, 0, atol=1e-15)
    assert depth == pytest.approx(1)


def test_the_plane_is_shown_as_it_is():
    x = sphere.uniform(5, 2, np.random.default_rng(0))
    picture, depth = plots.view(x)
    assert np.array_equal(picture, x)
    assert np.all(depth == 0)


@pytest.mark.parametrize("d", [2, 3])
def test_tokens_are_drawn_where_they_are(ax, d):
    x = sphere.uniform(6, d, np.random.default_rng(1))
    plots.sphere(ax, d)
    plots.tokens(ax, x)
    drawn = np.concatenate([np.asarray(c.get_offsets()) for c in ax.collections])
    wanted = plots.view(x)[0]
    assert len(drawn) == 6
    assert all(np.abs(drawn - point).sum(axis=1).min() < 1e-14 for point in wanted)


def test_paths_need_time(ax):
    plots.paths(ax, sphere.uniform(4, 3, np.random.default_rng(0), batch=(7,)))
    assert len(ax.lines) == 8  # front and back of every token
    with pytest.raises(ValueError, match=r"shape \(T, n, d\)"):
        plots.paths(ax, sphere.uniform(4, 3, np.random.default_rng(0)))


def test_decay_leaves_zeros_out(ax):
    (line,) = plots.decay(ax, [0.0, 1.0, 2.0], [1.0, 0.0, 1e-3])
    assert ax.get_yscale() == "log"
    assert np.isnan(line.get_ydata()[1])


def test_arrows_point_along_the_vectors(ax):
    x, v = sphere.circle([0.0, 1.0]), np.array([[0.0, 1.0], [0.5, 0.0]])
    quiver = plots.arrows(ax, x, v, colour="k", scale=2.0)
    assert np.allclose(np.stack([quiver.U, quiver.V], -1), 2 * v)


@pytest.mark.parametrize("d", [1, 4])
def test_other_dimensions_are_refused(d):
    with pytest.raises(ValueError, match="dimension 2 or 3"):
        plots.view(np.ones((3, d)))


def test_style_sets_the_sizes():
    style.use()
    assert tuple(mpl.rcParams["figure.figsize"]) == style.STANDARD
    assert min(mpl.rcParams[k] for k in ("font.size", "xtick.labelsize", "legend.fontsize")) >= 9
    assert mpl.rcParams["text.usetex"] is False


def test_colours_of_lines_and_text_stand_out_from_white():
    def luminance(colour):
        c = np.array(mpl.colors.to_rgb(colour))
        c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return c @ [0.2126, 0.7152, 0.0722]

    for name, colour in style.COLOURS.items():
        assert 1.05 / (luminance(colour) + 0.05) >= (2.0 if name == "third" else 2.6), name


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: plots.view([[1.0, 0, 0]], azimuth=np.nan), "azimuth must be finite"),
        (lambda ax: plots.view([[1.0, 0, 0]], elevation="low"), "elevation must be a number"),
        (lambda ax: plots.sphere(ax, 7), "d must be 2 or 3"),
        (lambda ax: plots.sphere(ax, True), "d must be 2 or 3"),
        (lambda ax: plots.sphere(ax, 3, azimuth=np.inf), "azimuth must be finite"),
        (lambda ax: plots.tokens(ax, np.ones((2, 3, 2))), r"x must have shape \(n, d\)"),
        (lambda ax: plots.arrows(ax, np.eye(2), np.ones((3, 2)), colour="k"), "vectors must have the shape of x"),
        (lambda ax: plots.arrows(ax, np.eye(2), np.eye(2), colour="k", scale=np.nan), "scale must be finite"),
        (lambda ax: plots.decay(ax, [1.0, 2.0], [1.0]), "y must have one value"),
        (lambda ax: plots.floor(ax, 0), "level must be finite and > 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(ax, draw, message):
    with pytest.raises(ValueError, match=message):
        draw(ax)
