"""Draw the card that a link to the book shows in a message.

    python -m ci.card book/_static/cover.svg book/_static/card.png

The browser sets the title over the picture of README.md: 1200 x 630 pixels, the
size social networks ask for.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ci.browser import launch
from ci.chapters import write_bytes

__all__ = ["SIZE", "main"]

#: Width and height in pixels.
SIZE = (1200, 630)

_PAGE = """<!DOCTYPE html><html lang="en"><style>
* {{ margin: 0 }}
body {{ width: 1200px; height: 630px; overflow: hidden; background: #fff; color: #222832; font-family: sans-serif }}
h1 {{ font-size: 54px; font-weight: 700; line-height: 1.12; padding: 42px 60px 0 }}
p {{ font-size: 27px; padding: 14px 60px 0; color: #4a5361 }}
div {{ position: absolute; left: 40px; right: 40px; top: 240px; height: 390px; overflow: hidden }}
div svg {{ width: 1120px; height: auto; margin-top: -14px }}
</style><h1>Clustering in Causal Attention<br>Masking, reproduced</h1>
<p>Every claim of the paper: rebuilt, measured and judged.</p><div>{picture}</div></html>"""


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 1 if the card cannot be drawn."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 2:
        print("usage: python -m ci.card PICTURE.svg CARD.png", file=sys.stderr)
        return 2
    source, target = map(Path, arguments)
    try:
        svg = source.read_text(encoding="utf8")
        with launch() as browser:
            tab = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
            tab.set_content(_PAGE.format(picture=svg[svg.index("<svg") :]))
            picture = tab.screenshot()
    except (OSError, ValueError) as error:
        print(f"no card: {error}", file=sys.stderr)
        return 1
    write_bytes(target, picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
