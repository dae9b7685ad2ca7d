"""The built pages, as a reader gets them: without network, on a screen and on a phone."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from bs4 import BeautifulSoup

from ci.chapters import Tree

pytestmark = pytest.mark.pages

TREE = Tree()
PAGES = TREE.pages()
MAX_BYTES = 4_000_000
SCREEN, PHONE = 1280, 360  # widths in pixels
# What a browser fetches by itself: (selector, attribute)
FETCHED = (
    ("script[src]", "src"),
    ("link[href]:not([rel~=canonical]):not([rel~=next]):not([rel~=prev])", "href"),
    ("img[src], iframe[src], video[src], audio[src], source[src], embed[src]", "src"),
    ("object[data]", "data"),
)


@cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf8"), "html.parser")


def page_file(site: Path, page: str) -> Path:
    return site / f"{page}.html"


def html_files(site: Path) -> list[Path]:
    return [p for p in site.rglob("*.html") if "_static" not in p.relative_to(site).parts]


def fetched(page: Path) -> list[str]:
    return [tag[attribute] for selector, attribute in FETCHED for tag in soup(page).select(selector)]


def is_external(address: str) -> bool:
    return bool(urlsplit(address).netloc) or urlsplit(address).scheme in ("http", "https", "ws", "wss")


def local(page: Path, address: str) -> Path:
    """The file behind a relative address."""
    return (page.parent / unquote(urlsplit(address).path)).resolve()


# What the files say


def test_nothing_is_fetched_from_elsewhere(site):
    found = [f"{p.relative_to(site)}: {a}" for p in html_files(site) for a in fetched(p) if is_external(a)]
    for path in [*html_files(site), *site.rglob("*.css")]:
        text = path.read_text(encoding="utf8")
        found += [
            f"{path.relative_to(site)}: {m[0]}"
            for m in re.finditer(r"""(?:url\(|@import)\s*["']?https?:[^)"']+""", text)
        ]
    assert not found


def test_links_and_anchors_lead_somewhere(site):
    broken = []
    for page in html_files(site):
        links = [a["href"] for a in soup(page).select("a[href]")] + fetched(page)
        for address in links:
            if is_external(address) or urlsplit(address).scheme:
                continue
            target, anchor = local(page, address), unquote(urldefrag(address).fragment)
            if target.is_dir():
                target = page
            name = f"{page.relative_to(site)}: {address}"
            if not target.exists():
                broken.append(name)
            elif anchor and target.suffix == ".html" and not _has_anchor(target, anchor):
                broken.append(f"{name} (no such anchor)")
    assert not broken


@cache
def _anchors(page: Path) -> frozenset[str]:
    named = [tag.get("id") or tag.get("name") for tag in soup(page).select("[id], a[name]")]
    return frozenset(filter(None, named))


def _has_anchor(page: Path, anchor: str) -> bool:
    return anchor in _anchors(page) or anchor == "top"


def test_every_claim_can_be_reached(site, all_claims):
    for table in ("book/evidence/report", "book/index"):
        page = page_file(site, table)
        links = {(local(page, a["href"]), urldefrag(a["href"]).fragment) for a in soup(page).select(".csa-claims a")}
        for claim in all_claims:
            target = page_file(site, f"book/{claim['chapter']}").resolve()
            assert (target, claim["anchor"]) in links, f"{table} does not link to {claim['id']}"
            assert _has_anchor(target, claim["anchor"])


@pytest.mark.parametrize("page", PAGES)
def test_page_is_well_formed(site, page):
    path = page_file(site, page)
    tree = soup(path)
    assert tree.html.get("lang") == "en"
    assert tree.title.get_text(strip=True)
    assert tree.select_one("meta[name=viewport]")
    assert len(tree.select("article h1")) == 1
    ids = [tag["id"] for tag in tree.select("article [id]")]
    doubled = sorted({i for i in ids if ids.count(i) > 1})
    assert not doubled, f"anchors that occur twice: {doubled}"
    nameless = [str(img)[:120] for img in tree.select("article img") if not img.get("alt", "").strip()]
    # without an alternative text, the builders put a file name
    nameless += [i["alt"] for i in tree.select("article img[alt]") if re.search(r"\.(png|svg|jpe?g)$", i["alt"])]
    assert not nameless, "pictures without an alternative text"


@pytest.mark.parametrize("page", PAGES)
def test_page_is_not_heavy(site, page):
    path = page_file(site, page)
    files = {path, *(local(path, address) for address in fetched(path) if not address.startswith("data:"))}
    weight = sum(file.stat().st_size for file in files if file.is_file())
    assert weight < MAX_BYTES


# What a browser makes of them


MATH = """() => ({
    wanted: document.querySelectorAll('article .math').length,
    bare: [...document.querySelectorAll('article .math')]
        .filter(e => !e.querySelector('mjx-container')).map(e => e.textContent.slice(0, 80)),
    wrong: [...document.querySelectorAll('mjx-merror, [data-mjx-error]')]
        .map(e => e.getAttribute('data-mjx-error') || e.textContent.slice(0, 80)),
    unknown: [...document.querySelectorAll('mjx-mtext[style*="red"]')].map(e => e.textContent || 'a command'),
})"""

WIDER = """() => {
    const width = document.documentElement.clientWidth;
    if (Math.max(document.documentElement.scrollWidth, document.body.scrollWidth) <= width) return [];
    const boxed = e => { for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
        if (getComputedStyle(p).overflowX !== 'visible') return true; return false; };
    const wide = [...document.querySelectorAll('article *')]
        .filter(e => e.getBoundingClientRect().right > width + 1 && !boxed(e));
    return ['page ' + document.documentElement.scrollWidth + ' > ' + width,
        ...wide.slice(0, 5).map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40))];
}"""


def assert_good(tab, seen):
    assert seen.external == [], "requests to elsewhere"
    assert seen.failed == [], "requests that failed"
    assert seen.errors == [], "errors on the console"
    math = tab.evaluate(MATH)
    assert math["bare"] == [], "mathematics that was left as source"
    assert math["wrong"] == [], "mathematics with an error"
    assert math["unknown"] == [], "mathematics with an unknown command"
    broken = "[...document.images].filter(i => i.complete && !i.naturalWidth && i.src).map(i => i.src.slice(-80))"
    assert tab.evaluate(broken) == [], "pictures that are not there"


@pytest.mark.parametrize("page", PAGES)
def test_page_over_http(visit, page):
    tab, seen = visit(page, "http", SCREEN)
    for width in (SCREEN, PHONE):
        tab.set_viewport_size({"width": width, "height": 900})
        picture = TREE.build / "screenshots" / f"{page.removeprefix('book/').replace('/', '-')}-{width}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=str(picture), full_page=True)
        assert tab.evaluate(WIDER) == [], f"the page scrolls sideways at a width of {width}"
        assert_good(tab, seen)


@pytest.mark.parametrize("page", PAGES)
def test_page_from_disk(visit, page):
    assert_good(*visit(page, "file", SCREEN))


def test_front_page_leads_to_the_book(visit):
    tab, seen = visit("index", "file", SCREEN)
    tab.wait_for_url("**/book/index.html", timeout=30_000)
    assert seen.external == []


def test_a_claim_is_reached_from_the_report(visit, all_claims):
    tab, seen = visit("book/evidence/report", "file", SCREEN)
    tab.click(f".csa-claims td a[href$='#{all_claims[-1]['anchor']}'] >> nth=-1")
    tab.wait_for_url(f"**/{all_claims[-1]['chapter']}.html#*", timeout=30_000)
    card = tab.locator(f"#{all_claims[-1]['anchor']}")
    card.scroll_into_view_if_needed()
    assert card.is_visible()
    assert seen.external == []
