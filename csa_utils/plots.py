"""Figures.  Plots show; they never judge (that is what ``claims`` is for)."""

from __future__ import annotations

import numpy as np
from matplotlib.patches import Circle

from . import checks
from .style import COLOURS, ORDER

__all__ = ["arrows", "decay", "floor", "guide", "paths", "sphere", "tokens", "view"]

#: From where the sphere is seen: azimuth and elevation in degrees.
DEFAULT_VIEW = (35.0, 22.0)


def view(x, azimuth: float = DEFAULT_VIEW[0], elevation: float = DEFAULT_VIEW[1]) -> tuple[np.ndarray, np.ndarray]:
    """Orthographic picture of points in the plane or in space.

    Parameters
    ----------
    x : array_like, shape (..., d) with d = 2 or 3
    azimuth, elevation : float
        Direction of the viewer, in degrees; only used for d = 3.

    Returns
    -------
    picture : ndarray, shape (..., 2)
    depth : ndarray, shape (...)
        Positive towards the viewer; zero for d = 2.

    Raises
    ------
    ValueError
        If d is neither 2 nor 3, or an angle is no finite number.
    """
    x = checks.vectors("x", x, unit=False)
    azimuth, elevation = checks.number("azimuth", azimuth), checks.number("elevation", elevation)
    if x.shape[-1] == 2:
        return x, np.zeros(x.shape[:-1])
    if x.shape[-1] != 3:
        raise ValueError(f"x must have dimension 2 or 3 to be drawn, got shape {x.shape}")
    a, e = np.radians(azimuth), np.radians(elevation)
    right = np.array([-np.sin(a), np.cos(a), 0])
    up = np.array([-np.cos(a) * np.sin(e), -np.sin(a) * np.sin(e), np.cos(e)])
    return x @ np.stack([right, up], axis=-1), x @ np.cross(right, up)


def sphere(ax, d: int, azimuth: float = DEFAULT_VIEW[0], elevation: float = DEFAULT_VIEW[1]) -> None:
    """Draw the circle (d = 2) or the sphere with a few meridians (d = 3) as a stage.

    Parameters
    ----------
    ax : matplotlib Axes
    d : int
        2 or 3.
    azimuth, elevation : float
        Direction of the viewer, in degrees.

    Raises
    ------
    ValueError
        If d is neither 2 nor 3, or an angle is no finite number.
    """
    if isinstance(d, bool) or d not in (2, 3):
        raise ValueError(f"d must be 2 or 3 to be drawn, got {d!r}")
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.set(xlim=(-1.16, 1.16), ylim=(-1.16, 1.16))
    face = "none" if d == 2 else "#F6F7F9"
    ax.add_patch(Circle((0, 0), 1, facecolor=face, edgecolor=COLOURS["quiet"], linewidth=1.1, zorder=0))
    if d == 3:
        s = np.linspace(0, 2 * np.pi, 181)
        rings = [np.stack([np.cos(s), np.sin(s), 0 * s], -1)]
        rings += [np.stack([np.cos(p) * np.cos(s), np.sin(p) * np.cos(s), np.sin(s)], -1) for p in (0, np.pi / 2)]
        for ring in rings:
            picture, depth = view(ring, azimuth, elevation)
            for front, alpha in ((depth >= 0, 0.9), (depth < 0, 0.4)):
                shown = np.where(front[:, None], picture, np.nan)
                ax.plot(*shown.T, color="#C9CFD7", linewidth=0.8, alpha=alpha, zorder=0.5)


def tokens(
    ax,
    x,
    *,
    label: str | None = None,
    colour: str = COLOURS["token"],
    order: bool = False,
    first: bool = True,
    size: float = 34,
    azimuth: float = DEFAULT_VIEW[0],
    elevation: float = DEFAULT_VIEW[1],
):
    """Draw tokens as dots and the first one as a star.

    Parameters
    ----------
    ax : matplotlib Axes
        Prepared with :func:`sphere`.
    x : array_like, shape (n, d)
        Tokens, d = 2 or 3.  On the far side of the sphere they are hollow.
    label : str, optional
        For the legend.
    colour : str
        Of the dots, unless `order` is set.
    order : bool
        Colour the tokens by their place in the sequence.
    first : bool
        Mark the first token.
    size : float
        Area of a dot in points squared.

    Returns
    -------
    PathCollection
        The dots, for a colour bar.
    """
    x = _one_sequence(x)
    picture, depth = view(x, azimuth, elevation)
    start = 1 if first else 0
    colours = np.arange(len(x)) if order else None
    dots = None
    for front in (False, True):
        chosen = np.flatnonzero((depth[start:] >= 0) == front) + start
        if len(chosen) == 0:
            continue
        style = {"c": colours[chosen], "cmap": ORDER, "vmin": 0, "vmax": len(x) - 1} if order else {"color": colour}
        dots = ax.scatter(
            *picture[chosen].T,
            s=size,
            alpha=0.95 if front else 0.35,
            linewidths=0.6,
            edgecolors="white",
            zorder=3 if front else 1,
            label=label if front or depth[start:].max() < 0 else None,
            **style,
        )
    if first:
        ax.scatter(
            *picture[0],
            marker="*",
            s=5.5 * size,
            color=COLOURS["first"],
            edgecolors="white",
            linewidths=0.8,
            alpha=1.0 if depth[0] >= 0 else 0.55,
            zorder=5,
            label="first token" if label else None,
        )
    return dots


def paths(
    ax,
    x,
    *,
    colour: str = COLOURS["token"],
    azimuth: float = DEFAULT_VIEW[0],
    elevation: float = DEFAULT_VIEW[1],
    linewidth: float = 1.0,
    alpha: float = 0.55,
) -> None:
    """Draw the way of every token; x has shape (T, n, d), d = 2 or 3.

    On the circle the radius grows a little with time, so that ways do not overlap.
    """
    x = checks.tokens("x", x, unit=False)
    if x.ndim != 3:
        raise ValueError(f"x must have shape (T, n, d), got shape {x.shape}")
    if x.shape[-1] == 2:
        x = x * np.linspace(0.62, 0.96, len(x))[:, None, None]
    picture, depth = view(x, azimuth, elevation)
    for k in range(x.shape[1]):
        first = k == 0
        for front in (True, False):
            shown = np.where((depth[:, k] >= 0)[:, None] == front, picture[:, k], np.nan)
            ax.plot(
                *shown.T,
                color=COLOURS["first"] if first else colour,
                linewidth=1.6 * linewidth if first else linewidth,
                alpha=alpha if front else 0.4 * alpha,
                zorder=2,
            )


def arrows(
    ax,
    x,
    vectors,
    *,
    colour: str,
    label: str | None = None,
    scale: float = 1.0,
    width: float = 0.008,
    **view_,
):
    """Draw velocities at tokens as arrows; x and vectors have shape (n, d)."""
    x, vectors = _one_sequence(x), checks.vectors("vectors", vectors, unit=False)
    if x.shape != vectors.shape:
        raise ValueError(f"vectors must have the shape of x, {x.shape}, got shape {vectors.shape}")
    scale = checks.number("scale", scale)
    base, _ = view(x, **view_)
    tip, _ = view(x + scale * vectors, **view_)
    return ax.quiver(
        *base.T,
        *(tip - base).T,
        angles="xy",
        scale_units="xy",
        scale=1,
        color=colour,
        width=width,
        label=label,
        zorder=4,
    )


def decay(ax, t, y, *, label: str | None = None, colour: str = COLOURS["token"], **line):
    """A positive quantity against time, on a logarithmic axis; zeros are left out."""
    t, y = checks.array("t", t), checks.array("y", y)
    if t.ndim != 1 or y.shape[:1] != t.shape:
        raise ValueError(f"y must have one value or row for each time in t, got shapes {y.shape} and {t.shape}")
    ax.set_yscale("log")
    return ax.plot(t, np.where(y > 0, y, np.nan), label=label, color=colour, **line)


def guide(ax, t, y, *, label: str | None = None, **line):
    """A prediction: dashed ink."""
    return ax.plot(t, y, linestyle=(0, (5, 3)), color=COLOURS["theory"], linewidth=1.5, label=label, zorder=4, **line)


def floor(ax, level: float = 4e-16, *, label: str = "rounding of float64") -> None:
    """Shade the values that double precision cannot resolve."""
    level = checks.positive("level", level)
    ax.axhspan(level * 1e-6, level, color=COLOURS["quiet"], alpha=0.22, linewidth=0, label=label, zorder=0)


def _one_sequence(x) -> np.ndarray:
    """Tokens of one sequence, shape (n, d), of any length."""
    x = checks.tokens("x", x, unit=False)
    if x.ndim != 2:
        raise ValueError(f"x must have shape (n, d), got shape {x.shape}")
    return x
