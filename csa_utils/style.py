"""Colours, figure sizes and matplotlib settings: one look for the whole book.

Colours are the Okabe-Ito palette, used as a vocabulary; each meaning also has a
marker or a dash pattern of its own, so that nothing is told by colour alone.
"""

from __future__ import annotations

import matplotlib as mpl

__all__ = ["COLOURS", "ORDER", "STANDARD", "WIDE", "use"]

#: What each colour stands for.
COLOURS = {
    "first": "#D55E00",  # the first token: vermillion, drawn as a star
    "token": "#0072B2",  # other tokens: blue dots
    "center": "#222832",  # Rényi centers and all ink
    "theory": "#222832",  # predictions: dashed ink
    "control": "#CC79A7",  # a control that breaks a hypothesis: purple, dash-dotted
    "other": "#009E73",  # a second series: green
    "third": "#E69F00",  # a third series: orange
    "quiet": "#8A94A3",  # outlines, guides, numerical floors
}

#: Colour map for order of tokens or time.
ORDER = "cividis"

#: Figure sizes in inches.
STANDARD = (6.4, 4.0)
WIDE = (9.6, 3.8)


def use() -> None:
    """Set matplotlib's defaults for the book: call once, after the imports."""
    mpl.rcParams.update(
        {
            "figure.figsize": STANDARD,
            "figure.dpi": 110,
            "savefig.dpi": 200,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "figure.constrained_layout.use": True,
            "font.size": 10.5,
            "axes.titlesize": 11.5,
            "axes.titlelocation": "left",
            "axes.titlepad": 8,
            "axes.labelsize": 10.5,
            "axes.edgecolor": COLOURS["center"],
            "axes.labelcolor": COLOURS["center"],
            "text.color": COLOURS["center"],
            "xtick.color": COLOURS["center"],
            "ytick.color": COLOURS["center"],
            "xtick.labelsize": 9.5,
            "ytick.labelsize": 9.5,
            "legend.fontsize": 9.5,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#E4E7EB",
            "grid.linewidth": 0.7,
            "lines.linewidth": 1.8,
            "lines.markersize": 5,
            "mathtext.fontset": "dejavusans",
            "text.usetex": False,
            "svg.fonttype": "path",
            "svg.hashsalt": "csa",
        }
    )
    _vector_figures()


def _vector_figures() -> None:
    """In a notebook, show figures as SVG: sharp at every zoom, in print too."""
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()
    if shell is not None and "IPKernelApp" in shell.config:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg")
