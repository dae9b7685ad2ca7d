"""Figures that move: on a static page as well as in JupyterLab."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from importlib import resources

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex

from . import checks, plots
from .simulate import Trajectory
from .style import COLOURS, ORDER

__all__ = ["Player", "player"]

_STAR = "0,-9 2.1,-2.9 8.6,-2.8 3.4,1.1 5.3,7.3 0,3.6 -5.3,7.3 -3.4,1.1 -8.6,-2.8 -2.1,-2.9"
_STYLE = """
.csa-player{margin:1rem 0;padding:.75rem;background:#fff;color:#222832;border:1px solid #d5dae1;border-radius:8px}
.csa-player .csa-panels{display:flex;flex-wrap:wrap;gap:.5rem 1.5rem;justify-content:center}
.csa-player .csa-panel{flex:1 1 200px;max-width:340px;margin:0;text-align:center}
.csa-player .csa-panel-title{font-size:.95em;margin:0 0 .2rem;font-weight:600;color:#222832}
.csa-player svg{width:100%;height:auto;display:block}
.csa-player svg[tabindex]{cursor:grab;touch-action:pan-y}
.csa-player .csa-controls{display:flex;align-items:center;gap:.75rem;max-width:640px;margin:.5rem auto 0}
.csa-player .csa-controls[hidden]{display:none}
.csa-player button{min-width:2.75rem;min-height:2.25rem;border:1px solid #5b6675;border-radius:6px;background:#f3f5f8;
color:#222832;font-size:1rem;cursor:pointer}
.csa-player input{flex:1 1 auto;min-width:0;accent-color:#0072B2;min-height:2.25rem}
.csa-player output{min-width:6.2em;font-variant-numeric:tabular-nums;text-align:right;color:#222832}
.csa-player :focus-visible{outline:3px solid #D55E00;outline-offset:2px}
.csa-player figcaption{font-size:.9em;color:#3d4652;margin:.5rem auto 0;max-width:640px}
""".replace("\n", "")


class Player:
    """An HTML figure; notebooks display it, and ``str()`` gives the HTML."""

    def __init__(self, html_text: str, alt: str) -> None:
        self._html = html_text
        self._alt = alt

    def __str__(self) -> str:
        return self._html

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return f"Player({self._alt!r})"


def player(
    trajectories: Trajectory | Sequence[Trajectory],
    *,
    alt: str,
    titles: Sequence[str] = (),
    caption: str = "",
    order: bool = False,
    seconds: float = 8.0,
    start: float = 0.0,
) -> Player:
    """Play one or more trajectories side by side, with a slider and a play button.

    The figure is drawn as vector graphics by a short script of its own, so it moves
    without a kernel and without the network.  In three dimensions the sphere turns
    under the pointer or the arrow keys.

    Parameters
    ----------
    trajectories : Trajectory or sequence of Trajectory
        Without batch axes, in dimension 2 or 3, all at the same times.
    alt : str
        What the picture shows, for readers who do not see it.
    titles : sequence of str
        One for each trajectory.
    caption : str
        Plain text below the figure.
    order : bool
        Colour the tokens by their place in the sequence instead of blue.
    seconds : float
        Length of the film, > 0.
    start : float
        Where the slider stands at first, from 0 (first frame) to 1 (last).

    Returns
    -------
    Player

    Raises
    ------
    ValueError
        If the trajectories do not fit together or an argument breaks its rule.
    """
    if isinstance(trajectories, Trajectory):
        trajectories = [trajectories]
    trajectories = list(trajectories) if isinstance(trajectories, Sequence) else [trajectories]
    if not trajectories or not all(isinstance(run, Trajectory) for run in trajectories):
        raise ValueError(f"trajectories must be one or more Trajectory objects, got {trajectories!r}")
    t, d = trajectories[0].t, trajectories[0].d
    for run in trajectories:
        if run.batch or run.d != d or d not in (2, 3) or not np.array_equal(run.t, t):
            raise ValueError(f"trajectories must share their times and a dimension of 2 or 3, got {run!r}")
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(f"alt must say what the picture shows, got {alt!r}")
    if titles and len(titles) != len(trajectories):
        raise ValueError(f"titles must number {len(trajectories)}, got {list(titles)!r}")
    seconds = checks.positive("seconds", seconds)
    if not isinstance(start, (int, float)) or not 0 <= start <= 1:
        raise ValueError(f"start must be in [0, 1], got {start!r}")
    frame = round(start * (len(t) - 1))
    panels = "".join(
        _panel(run.x, frame, titles[i] if titles else "", alt, order) for i, run in enumerate(trajectories)
    )
    meta = {
        "t": [float(f"{v:.6g}") for v in t],
        "d": d,
        "seconds": seconds,
        "view": [float(v) for v in np.radians(plots.DEFAULT_VIEW)],
    }
    note = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    script = resources.files(__package__).joinpath("player.js").read_text("utf8")
    return Player(
        f'<figure class="csa-player" data-meta="{html.escape(json.dumps(meta))}"><style>{_STYLE}</style>'
        f'<div class="csa-panels">{panels}</div><div class="csa-controls" hidden>'
        f'<button type="button" aria-label="play">▶</button>'
        f'<input type="range" min="0" max="{len(t) - 1}" step="any" value="{frame}" aria-label="time">'
        f"<output></output></div>{note}</figure><script>{script}</script>",
        alt,
    )


def _panel(x: np.ndarray, frame: int, title: str, alt: str, order: bool) -> str:
    """One picture, drawn at `frame` already: readers without scripts see that."""
    picture, depth = plots.view(x[frame])
    n, d = x.shape[-2:]
    colours = [to_hex(c) for c in mpl.colormaps[ORDER](np.linspace(0, 1, n))] if order else [COLOURS["token"]] * n
    shapes = []
    for k in range(n):
        place = f'transform="translate({100 * picture[k, 0]:.2f} {-100 * picture[k, 1]:.2f})"'
        place += f' opacity="{1 if depth[k] > -1e-9 else 0.35}"'
        if k == 0:
            shape = f'<polygon points="{_STAR}" fill="{COLOURS["first"]}" stroke="#fff" stroke-width="0.8"/>'
        else:
            shape = f'<circle r="4.2" fill="{colours[k]}" stroke="#fff" stroke-width="0.8"/>'
        shapes.append(f'<g class="csa-token" {place}>{shape}</g>')
    # The first token is drawn last, on top; the script takes tokens in that order.
    shapes.append(shapes.pop(0))
    frames = base64.b64encode(np.round(np.roll(x, -1, axis=-2) * 32767).astype("<i2").tobytes()).decode()
    rings = '<polyline fill="none" stroke="#C9CFD7" stroke-width="0.8"/>' * 3 if d == 3 else ""
    stage = f'<circle r="100" fill="{"#F6F7F9" if d == 3 else "none"}" stroke="{COLOURS["quiet"]}" stroke-width="1"/>'
    name = f"{title}: {alt}" if title else alt
    heading = f'<p class="csa-panel-title">{html.escape(title)}</p>' if title else ""
    focus = ' tabindex="0"' if d == 3 else ""
    return (
        f'<div class="csa-panel">{heading}<svg viewBox="-112 -112 224 224" role="img" '
        f'aria-label="{html.escape(name)}"{focus} data-frames="{frames}">{stage}{rings}{"".join(shapes)}</svg></div>'
    )
