"""Print the whole book into one PDF file.

    python -m ci.print_book

The built pages are put into one document in the order of the table of contents:
links between pages become links inside it.  Chromium prints that document twice.
The first time shows on which page each section starts, the second time has these
numbers in the table of contents.
"""

from __future__ import annotations

import html
import posixpath
import re
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup, Tag
from pypdf import PdfReader

from ci.browser import launch, settle
from ci.chapters import ROOT, Tree, write_bytes, write_text

__all__ = ["Printed", "main", "print_book", "section_pages"]

_CSS = ROOT / "book" / "_static" / "print.css"
#: What only makes sense on a screen.
_SCREEN_ONLY = (
    ".headerlink, noscript, link, details.hide > summary, .csa-screen, #csa-playground, "
    "script:not(.csa-player + script), button:not(.csa-controls button)"
)
#: A film on paper: its beginning, an early moment and its end, below each other.
_FILM_STRIPS = """() => {
    for (const player of document.querySelectorAll('figure.csa-player')) {
        const slider = player.querySelector('input[type=range]');
        const panels = player.querySelector('.csa-panels');
        for (const part of [0, 0.3, 1]) {
            slider.value = part * slider.max;
            slider.dispatchEvent(new Event('input'));
            const strip = panels.cloneNode(true);
            const time = document.createElement('p');
            time.className = 'csa-print-time';
            time.textContent = player.querySelector('output').textContent;
            strip.prepend(time);
            panels.before(strip);
        }
        panels.remove();
    }
}"""
_FOOTER = (
    '<div style="width: 100%; font: 8pt sans-serif; color: #56606f; text-align: center">'
    '<span class="pageNumber"></span></div>'
)


@dataclass(frozen=True)
class Printed:
    """A printed book.

    Attributes
    ----------
    path : Path
        The file.
    pages : int
        How many pages it has.
    sections : dict of str to int
        Page, from 1, on which each entry of the table of contents starts.
    """

    path: Path
    pages: int
    sections: dict[str, int]


def print_book(tree: Tree, target: Path | None = None, browser=None) -> Printed:
    """Print the built site.

    Parameters
    ----------
    tree : Tree
        The book, with its site built.
    target : Path, optional
        Where the file goes; ``_build/book.pdf`` if left out.
    browser : Playwright Browser, optional
        One that runs already; otherwise one is started.

    Returns
    -------
    Printed

    Raises
    ------
    FileNotFoundError
        If the site is not built or no browser is installed.
    RuntimeError
        If the page numbers do not settle.
    """
    target = tree.build / "book.pdf" if target is None else target
    target.unlink(missing_ok=True)
    missing = [page for page in tree.pages() if not (tree.html / f"{page}.html").exists()]
    if missing:
        raise FileNotFoundError(f"the site must be built (make book), got no page for {', '.join(missing)}")
    source = tree.build / "print" / "book.html"
    parts = [_part(tree, page) for page in tree.pages()]
    numbers: dict[str, int] = {}
    with launch() if browser is None else nullcontext(browser) as running:
        for _ in range(3):
            write_text(source, _document(tree, parts, numbers))
            data = _print(running, source)
            found = section_pages(data)
            if found == numbers:
                write_bytes(target, data)
                return Printed(target, len(PdfReader(BytesIO(data)).pages), found)
            numbers = found
    raise RuntimeError("page numbers must be the same in two prints in a row, got different ones each time")


def section_pages(data: bytes) -> dict[str, int]:
    """Page, from 1, of everything in a printed book that a link leads to.

    Parameters
    ----------
    data : bytes
        A PDF file.

    Returns
    -------
    dict of str to int
    """
    reader = PdfReader(BytesIO(data))
    return {
        name.lstrip("/"): reader.get_destination_page_number(place) + 1
        for name, place in reader.named_destinations.items()
    }


def _print(browser, source: Path) -> bytes:
    tab = browser.new_page()
    try:
        tab.goto(source.resolve().as_uri(), wait_until="load", timeout=120_000)
        settle(tab)
        tab.evaluate(_FILM_STRIPS)
        return tab.pdf(
            format="A4",
            print_background=True,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=_FOOTER,
            margin={"top": "18mm", "bottom": "20mm", "left": "20mm", "right": "20mm"},
            outline=True,
            tagged=True,
        )
    finally:
        tab.close()


def _slug(page: str) -> str:
    return page.removeprefix("book/").replace("/", "-")


def _part(tree: Tree, page: str) -> Tag:
    """The article of a page, with ids of its own and links that lead inside the book."""
    article = _soup(tree.html / f"{page}.html").select_one("article.bd-article")
    for tag in article.select(_SCREEN_ONLY):
        tag.decompose()
    for fold in article.select("details.hide"):
        if fold.find_parent(class_="tag_solution"):
            fold["open"] = ""
        else:
            fold.decompose()
    slugs = {name: _slug(name) for name in tree.pages()}
    for tag in article.find_all(True):
        for attribute in ("id", "for", "aria-labelledby", "aria-describedby"):
            if tag.get(attribute):
                tag[attribute] = f"{slugs[page]}--{tag[attribute]}"
        del tag["loading"]  # paper has no further down
        if tag.get("src"):
            tag["src"] = _from_print(page, tag["src"])
        if tag.name == "a" and tag.get("href"):
            _redirect(tag, page, slugs)
    article.name = "section"
    article["id"] = slugs[page]
    article["class"] = ["csa-print-part", "bd-article"]
    return article


def _soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf8"), "html.parser")


def _from_print(page: str, address: str) -> str:
    """An address on a page, as seen from ``_build/print``."""
    if urlsplit(address).scheme:
        return address
    return "../html/" + posixpath.normpath(posixpath.join(posixpath.dirname(page), address))


def _redirect(link: Tag, page: str, slugs: dict[str, str]) -> None:
    address = urlsplit(link["href"])
    if address.scheme or address.netloc:
        return
    name = posixpath.normpath(
        posixpath.join(posixpath.dirname(page), unquote(address.path) or posixpath.basename(page))
    )
    target = slugs.get(name.removesuffix(".html"))
    if target is None:
        link.unwrap()  # a file that is not printed
    else:
        link["href"] = f"#{target}--{address.fragment}" if address.fragment else f"#{target}"


def _document(tree: Tree, parts: list[Tag], numbers: dict[str, int]) -> str:
    front = _soup(tree.html / f"{tree.pages()[0]}.html")
    setting = next(str(s) for s in front.find_all("script") if s.string and "window.MathJax" in s.string)
    sheets = "".join(
        f'<link rel="stylesheet" href="{_from_print(tree.pages()[0], s["href"])}">'
        for s in front.select("link[rel=stylesheet]")
    )
    title = html.escape(parts[0].select_one("h1").get_text())
    entries = "\n".join(_entry(part, numbers) for part in parts[1:])
    body = "\n".join(str(part) for part in parts[1:])
    opening = _opening(parts[0])
    return f"""<!DOCTYPE html>
<html lang="en" data-theme="light"><head><meta charset="utf-8"><title>{title}</title>
{sheets}<style>{_CSS.read_text(encoding="utf8")}</style>
{setting}<script defer src="../html/_static/mathjax/tex-chtml.js"></script></head>
<body>{opening}
<nav class="csa-print-toc" aria-label="Contents"><h1>Contents</h1><ol>
{entries}
</ol></nav>
{body}
</body></html>
"""


def _opening(front: Tag) -> str:
    """The front page without its table, which the report has in full."""
    front = _soup_of(front)
    for table in front.select(".csa-claims"):
        (table.find_parent("section") or table).decompose()
    return str(front)


def _soup_of(tag: Tag) -> Tag:
    return BeautifulSoup(str(tag), "html.parser").find(True)


def _entry(part: Tag, numbers: dict[str, int]) -> str:
    inner = "".join(
        _line(heading.find_parent("section")["id"], heading, numbers)
        for heading in part.select("h2")
        if heading.find_parent("section")
    )
    return f"<li>{_line(part['id'], part.select_one('h1'), numbers)}<ol>{inner}</ol></li>"


def _line(anchor: str, heading: Tag, numbers: dict[str, int]) -> str:
    text = re.sub(r"</?h\d[^>]*>|</?a\b[^>]*>", "", str(heading))
    line = f'<a href="#{anchor}"><span>{text}</span><span class="csa-print-page">{numbers.get(anchor, "")}</span></a>'
    return line if heading.name == "h1" else f"<li>{line}</li>"


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 1 if the book cannot be printed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments:
        print("usage: python -m ci.print_book", file=sys.stderr)
        return 2
    print("Printing the book ...", flush=True)
    try:
        printed = print_book(Tree())
    except (FileNotFoundError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{printed.pages} pages. Open:\n  {printed.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
