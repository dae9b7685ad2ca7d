"""The player: what it holds is what was simulated; what does not fit is refused."""

import base64
import json
import re
from html import unescape

import matplotlib.pyplot as plt
import numpy as np
import pytest

from csa_utils import sphere, widgets
from csa_utils.simulate import simulate

TIMES = np.linspace(0, 2, 5)


def run(d=2, n=4, batch=(), seed=0, times=TIMES):
    return simulate(sphere.uniform(n, d, np.random.default_rng(seed), batch), times, beta=2.0)


def held_positions(html, n, d):
    """Positions (frames, n, d) that the page carries, first token first."""
    packed = base64.b64decode(re.search(r'data-frames="([^"]+)"', html)[1])
    moved = np.frombuffer(packed, dtype="<i2").reshape(-1, n, d) / 32767
    return np.roll(moved, 1, axis=1)


@pytest.mark.parametrize("d", [2, 3])
def test_the_page_carries_the_simulated_positions(d):
    trajectory = run(d)
    held = held_positions(str(widgets.player(trajectory, alt="tokens")), 4, d)
    assert np.abs(held - trajectory.x).max() < 2e-5


def test_times_length_and_names_are_in_the_page():
    html = str(widgets.player([run(), run(seed=1)], alt="a & b", titles=["left", "right"], seconds=3.0))
    meta = json.loads(unescape(re.search(r'data-meta="([^"]+)"', html)[1]))
    assert meta["t"] == list(TIMES)
    assert meta["seconds"] == 3.0
    assert html.count("<svg") == 2
    assert 'aria-label="left: a &amp; b"' in html
    assert 'max="4"' in html


def test_the_page_asks_for_nothing_from_outside():
    html = str(widgets.player(run(3), alt="tokens", caption="c"))
    assert not re.search(r"https?://|<link|src=|@import|url\(", html)


def test_notebooks_show_the_html():
    player = widgets.player(run(), alt="tokens")
    assert player._repr_html_() == str(player)
    assert repr(player) == "Player('tokens')"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trajectories": []}, "trajectories"),
        ({"trajectories": 3}, "trajectories"),
        ({"trajectories": run(d=4)}, "dimension of 2 or 3"),
        ({"trajectories": run(batch=(2,))}, "trajectories"),
        ({"trajectories": [run(), run(3)]}, "trajectories"),
        ({"trajectories": [run(), run(times=[0.0, 1.0])]}, "share their times"),
        ({"alt": " "}, "alt"),
        ({"alt": None}, "alt"),
        ({"titles": ["one", "two"]}, "titles must number 1"),
        ({"seconds": 0.0}, "seconds"),
        ({"seconds": np.nan}, "seconds"),
        ({"start": 1.5}, "start must be in"),
        ({"start": "x"}, "start must be a number"),
        ({"start": np.nan}, "start must be finite"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        widgets.player(**{"trajectories": run(), "alt": "tokens", **arguments})


# Explorers


def curve(beta=1.0, kind="a"):
    if beta < 0:
        raise ValueError(f"beta must be at least 0, got {beta}")
    fig, ax = plt.subplots(figsize=(2, 1.5))
    ax.plot([0, 1], [0, beta])
    ax.set_title(kind)
    return fig


BETA = widgets.control([0, 1, 4], "inverse temperature β", start=1, step=0.5)
KIND = widgets.control(["a", "b"], "kind")


def explore(**more):
    return widgets.explorer(curve, **{"beta": BETA, "kind": KIND, "alt": "A line.", **more})


def test_a_film_holds_one_picture_for_each_value():
    html = str(explore())
    pictures = re.findall(r'<img src="data:image/webp;base64,([^"]+)" alt="([^"]+)"( hidden)?>', html)
    assert len({picture for picture, _, _ in pictures}) == 3
    assert [alt for _, alt, _ in pictures] == [f"A line. Here: inverse temperature β = {v}." for v in (0, 1, 4)]
    assert [bool(hidden) for _, _, hidden in pictures] == [True, False, True]
    assert all(base64.b64decode(picture)[8:12] == b"WEBP" for picture, _, _ in pictures)
    assert json.loads(unescape(re.search(r'data-values="([^"]+)"', html)[1])) == ["0", "1", "4"]
    assert not re.search(r"https?://|<link|@import|url\(", html)


def test_a_film_says_what_rests():
    assert "Run the chapter to move more: kind, inverse temperature β in between." in str(explore())
    assert "inverse temperature" not in re.search("<figcaption>.*</figcaption>", str(explore(film="kind")))[0].replace(
        "move more: inverse temperature β.", ""
    )
    assert "Run the chapter" not in str(widgets.explorer(lambda kind: curve(1, kind), kind=KIND, alt="A line."))


def test_in_a_notebook_the_controls_draw_anew():
    made = explore()
    bundle = made._repr_mimebundle_()
    assert {"text/html", "text/plain", "application/vnd.jupyter.widget-view+json"} == set(bundle)
    before = made.picture.value
    made.widgets["beta"].value = 2.5
    assert made.picture.value not in (before, b"")
    middle = made.picture.value
    made.widgets["kind"].value = "b"
    assert made.picture.value != middle


def test_the_notebook_starts_with_the_picture_of_the_page():
    made = explore()
    assert base64.b64encode(made.picture.value).decode() in str(made)


def test_trouble_is_shown_and_goes_away():
    made = widgets.explorer(
        curve, alt="A line.", beta=widgets.control([0, 1], "β", step=0.5), kind=widgets.control(["a", "b"], "kind")
    )
    made.widgets["beta"].min = -1
    made.widgets["beta"].value = -1
    assert made.trouble.value == "<b>ValueError</b>: beta must be at least 0, got -1.0"
    made.widgets["beta"].value = 1
    assert made.trouble.value == ""


def test_whole_numbers_stay_whole():
    def draw(n):
        assert isinstance(n, int)
        return curve(n)

    made = widgets.explorer(draw, n=widgets.control(np.array([1, 5]), "n", step=1), alt="A line.")
    made.widgets["n"].value = 3
    assert made.trouble.value == ""


def test_no_figure_stays_open():
    before = plt.get_fignums()
    explore()
    assert plt.get_fignums() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": []}, "values must be from 2"),
        ({"values": [1]}, "values must be from 2"),
        ({"values": [1, 1]}, "different"),
        ({"values": range(26)}, "to 25"),
        ({"values": "ab"}, "values must be a sequence"),
        ({"values": 3}, "values must be a sequence"),
        ({"values": [1, np.nan]}, "finite"),
        ({"values": [1, np.inf]}, "finite"),
        ({"label": " "}, "label"),
        ({"label": None}, "label"),
        ({"start": 3}, "start must be one of"),
        ({"step": 0}, "step"),
        ({"step": np.nan}, "step"),
        ({"values": [2, 1], "step": 1}, "increasing"),
        ({"values": ["a", "b"], "step": 1}, "increasing"),
        ({"texts": ["one"]}, "texts"),
        ({"texts": [1, 2]}, "texts"),
    ],
)
def test_bad_controls_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        widgets.control(**{"values": [1, 2], "label": "β", **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draw": 3}, "draw must be a function"),
        ({"draw": lambda other: None}, "draw must take"),
        ({"draw": lambda beta: None}, "draw must return"),
        ({"beta": 3}, "controls"),
        ({"film": "gamma"}, "film"),
        ({"alt": ""}, "alt"),
        ({"alt": None}, "alt"),
        ({"caption": 3}, "caption"),
    ],
)
def test_bad_explorers_are_refused(arguments, message):
    given = {"draw": lambda beta: curve(beta), "beta": widgets.control([1, 2], "β"), "alt": "A line.", **arguments}
    with pytest.raises(ValueError, match=message):
        widgets.explorer(given.pop("draw"), **given)


def test_an_explorer_needs_a_control():
    with pytest.raises(ValueError, match="controls"):
        widgets.explorer(curve, alt="A line.")
