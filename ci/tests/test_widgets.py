"""The player: what it holds is what was simulated; what does not fit is refused."""

import base64
import json
import re
from html import unescape

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
        ({"start": "x"}, "start"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        widgets.player(**{"trajectories": run(), "alt": "tokens", **arguments})
