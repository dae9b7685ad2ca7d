"""Figures that move: on a static page as well as in JupyterLab."""

from __future__ import annotations

import base64
import html
import inspect
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from . import checks, plots
from .simulate import Trajectory
from .style import COLOURS, ORDER

__all__ = ["Control", "Explorer", "Player", "control", "explorer", "player"]

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
@media print{.csa-player .csa-controls{display:none}}
""".replace("\n", "")
_FILM_STYLE = """
.csa-film{margin:1rem 0;padding:.75rem;background:#fff;color:#222832;border:1px solid #d5dae1;border-radius:8px}
.csa-film img{display:block;max-width:100%;height:auto;margin:0 auto}
.csa-film img[hidden]{display:none}
.csa-film .csa-controls{max-width:640px;margin:.5rem auto 0}
.csa-film label{display:flex;flex-wrap:wrap;align-items:center;gap:0 .75rem;color:#222832}
.csa-film input{flex:1 1 12rem;min-width:0;accent-color:#0072B2;min-height:2.25rem}
.csa-film output{min-width:4em;font-variant-numeric:tabular-nums;text-align:right;color:#222832}
.csa-film :focus-visible{outline:3px solid #D55E00;outline-offset:2px}
.csa-film figcaption{font-size:.9em;color:#3d4652;margin:.5rem auto 0;max-width:640px}
@media print{.csa-film .csa-controls{display:none}}
""".replace("\n", "")
#: Pictures in a film: enough to see how things change, few enough to load.
MOST_FRAMES = 25


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
    start = checks.number("start", start)
    if not 0 <= start <= 1:
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


@dataclass(frozen=True)
class Control:
    """One thing a reader can change in an :func:`explorer`; made by :func:`control`.

    Attributes
    ----------
    label : str
        What it is, in words and symbols.
    values : tuple
        The values that the film shows.
    texts : tuple of str
        These values as a reader sees them.
    start : object
        The value at first.
    step : float or None
        Between values in a running notebook; None keeps to `values`.
    """

    label: str
    values: tuple
    texts: tuple[str, ...]
    start: object
    step: float | None


def control(values, label: str, *, start=None, step: float | None = None, texts: Sequence[str] = ()) -> Control:
    """Something to move in an :func:`explorer`.

    Parameters
    ----------
    values : sequence
        The values to choose from, at least 2 and at most 25, no two alike: numbers, or
        anything else that `draw` understands.
    label : str
        What it is, in words and symbols: "inverse temperature β".
    start : optional
        One of `values`; the first if left out.
    step : float, optional
        In a running notebook the slider then also takes values between the numbers in
        `values`, in steps of this size, > 0.
    texts : sequence of str, optional
        How to write the values; by default numbers in short form.

    Returns
    -------
    Control

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, np.ndarray)):
        raise ValueError(f"values must be a sequence, got {values!r}")
    values = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
    if not 2 <= len(values) <= MOST_FRAMES or any(a == b for i, a in enumerate(values) for b in values[:i]):
        raise ValueError(f"values must be from 2 to {MOST_FRAMES} different ones, got {values!r}")
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if any(not np.isfinite(v) for v in numbers):
        raise ValueError(f"values must be finite numbers, got {values!r}")
    if not isinstance(label, str) or not label.strip():
        raise ValueError(f"label must say what the control changes, got {label!r}")
    if start is None:
        start = values[0]
    if not any(start == v for v in values):
        raise ValueError(f"start must be one of {values!r}, got {start!r}")
    if step is not None:
        step = checks.positive("step", step)
        if len(numbers) < len(values) or list(values) != sorted(values):
            raise ValueError(f"values must be increasing numbers if a step is given, got {values!r}")
    if texts and (len(texts) != len(values) or not all(isinstance(text, str) for text in texts)):
        raise ValueError(f"texts must be {len(values)} strings, got {texts!r}")
    shown = tuple(texts) or tuple(f"{v:g}" if v in numbers else str(v) for v in values)
    return Control(label, values, shown, start, step)


class Explorer:
    """A figure with controls; notebooks display it, and ``str()`` gives the static HTML.

    Attributes
    ----------
    widgets : dict of str to ipywidgets.Widget
        The control of each argument; setting its ``value`` draws anew.
    picture : ipywidgets.Image
        The picture of the running notebook.
    """

    def __init__(self, draw, controls: dict[str, Control], film: str, alt: str, caption: str) -> None:
        import ipywidgets  # heavy, and of use only here

        self._draw, self._alt = draw, alt
        start = {name: c.start for name, c in controls.items()}
        frames = [_picture(draw, {**start, film: value}) for value in controls[film].values]
        first = controls[film].values.index(controls[film].start)
        self._html = _film(frames, controls, film, alt, caption)
        self.picture = ipywidgets.Image(value=frames[first], format="webp")
        self.picture.layout.max_width = "min(100%, 44rem)"
        self.picture.alt = alt
        self.trouble = ipywidgets.HTML()
        self.widgets = {name: _widget(ipywidgets, c) for name, c in controls.items()}
        for widget in self.widgets.values():
            widget.observe(self._redraw, names="value")
        self._box = ipywidgets.VBox([*self.widgets.values(), self.trouble, self.picture])

    def _redraw(self, _change) -> None:
        try:
            self.picture.value = _picture(self._draw, {name: w.value for name, w in self.widgets.items()})
            self.trouble.value = ""
        except Exception as error:  # shown below the sliders: a traceback would go nowhere
            self.trouble.value = f"<b>{html.escape(type(error).__name__)}</b>: {html.escape(str(error))}"

    def __str__(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return f"Explorer({self._alt!r})"

    def _repr_mimebundle_(self, **_options) -> dict:
        """Widgets where they live; elsewhere the film."""
        return {**self._box._repr_mimebundle_(), "text/html": self._html, "text/plain": repr(self)}


def explorer(
    draw: Callable[..., Figure],
    *,
    alt: str,
    film: str = "",
    caption: str = "",
    **controls: Control,
) -> Explorer:
    """A figure that the reader changes.

    In a running notebook every control is a slider or a list, and each change calls
    `draw`.  On a static page one of them, the *film*, moves through pictures that were
    drawn when the chapter ran; the others rest where they start, and the page says so.

    Parameters
    ----------
    draw : callable
        Called with one keyword argument for each control; returns a matplotlib figure.
    alt : str
        What the picture shows, for readers who do not see it.
    film : str
        Name of the control that moves on a static page; the first if left out.
    caption : str
        Plain text below the figure.
    **controls : Control
        From :func:`control`, by the name of the argument of `draw`.

    Returns
    -------
    Explorer

    Raises
    ------
    ValueError
        If an argument breaks its rule, or `draw` does not return a figure.

    Examples
    --------
    >>> def draw(beta):
    ...     fig, ax = plt.subplots()
    ...     ax.plot(np.exp(-beta * np.linspace(0, 1)))
    ...     return fig
    >>> explorer(draw, beta=control([1, 2, 4], "inverse temperature β"), alt="A falling curve.")
    Explorer('A falling curve.')
    """
    if not callable(draw):
        raise ValueError(f"draw must be a function, got {draw!r}")
    if not controls or not all(isinstance(c, Control) for c in controls.values()):
        raise ValueError(f"controls must be one or more results of control(...), got {controls!r}")
    try:
        inspect.signature(draw).bind(**controls)
    except TypeError as error:
        raise ValueError(f"draw must take the arguments {', '.join(controls)}, got a function where {error}") from None
    film = film or next(iter(controls))
    if film not in controls:
        raise ValueError(f"film must be one of {', '.join(controls)}, got {film!r}")
    for name, text in (("alt", alt), ("caption", caption)):
        if not isinstance(text, str) or (name == "alt" and not text.strip()):
            raise ValueError(f"{name} must be text about the picture, got {text!r}")
    return Explorer(draw, controls, film, alt, caption)


def _widget(ipywidgets, c: Control):
    """The live form of a control."""
    look = {
        "description": c.label,
        "continuous_update": False,
        "style": {"description_width": "initial"},
        "layout": {"width": "32rem", "max_width": "100%"},
    }
    if c.step is not None:
        whole = all(isinstance(v, int) for v in c.values) and float(c.step).is_integer()
        kind, step = (ipywidgets.IntSlider, int(c.step)) if whole else (ipywidgets.FloatSlider, c.step)
        return kind(value=c.start, min=c.values[0], max=c.values[-1], step=step, **look)
    options = list(zip(c.texts, c.values, strict=True))
    return ipywidgets.SelectionSlider(options=options, value=c.start, **look)


def _picture(draw, values: dict) -> bytes:
    """What `draw` makes of the values, as a WebP file."""
    figure = draw(**values)
    if not isinstance(figure, Figure):
        raise ValueError(f"draw must return a matplotlib figure, got {figure!r}")
    data = io.BytesIO()
    figure.savefig(data, format="webp", dpi=165, pil_kwargs={"lossless": True, "method": 5})
    plt.close(figure)
    return data.getvalue()


def _film(frames: list[bytes], controls: dict[str, Control], film: str, alt: str, caption: str) -> str:
    moving = controls[film]
    first = moving.values.index(moving.start)
    pictures = "".join(
        f'<img src="data:image/webp;base64,{base64.b64encode(frame).decode()}" '
        f'alt="{html.escape(f"{alt} Here: {moving.label} = {text}.")}"{"" if i == first else " hidden"}>'
        for i, (frame, text) in enumerate(zip(frames, moving.texts, strict=True))
    )
    others = [c.label for name, c in controls.items() if name != film]
    if others or moving.step is not None:
        free = ", ".join([*others, *([f"{moving.label} in between"] if moving.step is not None else [])])
        caption = f"{caption} Run the chapter to move more: {free}.".strip()
    note = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    script = resources.files(__package__).joinpath("film.js").read_text("utf8")
    return (
        f'<figure class="csa-film" data-values="{html.escape(json.dumps(moving.texts))}"><style>{_FILM_STYLE}</style>'
        f'<div class="csa-frames">{pictures}</div><div class="csa-controls" hidden><label>{html.escape(moving.label)}'
        f'<input type="range" min="0" max="{len(frames) - 1}" step="1" value="{first}">'
        f"<output></output></label></div>{note}</figure><script>{script}</script>"
    )
