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
MAX_BYTES_BEFORE_TEXT = 300_000
SCREEN, PHONE = 1280, 360  # widths in pixels
THEMES = ("light", "dark")
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


@pytest.mark.parametrize("page", PAGES)
def test_page_says_what_it_is_about(site, page):
    tree = soup(page_file(site, page))

    def content(selector):
        return [tag["content"] for tag in tree.select(selector)]

    (description,) = content("meta[name=description]")
    assert 40 <= len(description) <= 200
    assert "\\" not in description
    assert content("meta[property='og:description']") == [description]
    (card,) = content("meta[property='og:image']")
    assert (site / card).is_file()
    others = [soup(page_file(site, other)) for other in PAGES if other != page]
    assert tree.title.get_text(strip=True) not in [other.title.get_text(strip=True) for other in others]
    assert description not in [other.select_one("meta[name=description]")["content"] for other in others]


@pytest.mark.parametrize("page", PAGES)
def test_there_is_a_way_on_and_back(site, page):
    tree = soup(page_file(site, page))
    place = PAGES.index(page)
    ahead = tree.select_one(".prev-next-footer a.right-next")
    back = tree.select_one(".prev-next-footer a.left-prev")
    assert (ahead is None) == (place == len(PAGES) - 1)
    assert (back is None) == (place == 0)
    if ahead is not None:
        assert local(page_file(site, page), ahead["href"]) == page_file(site, PAGES[place + 1]).resolve()


@pytest.mark.parametrize("chapter", TREE.chapters())
def test_chapter_can_be_downloaded_as_a_notebook(site, chapter):
    page = page_file(site, f"book/{chapter}")
    (link,) = {a["href"] for a in soup(page).select(".article-header-buttons a[href$='.ipynb'], a[href$='.ipynb']")}
    assert local(page, link).read_text(encoding="utf8") == TREE.source(chapter).read_text(encoding="utf8")


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
    for theme in THEMES:
        switch_to(tab, theme)
        for width in (SCREEN, PHONE):
            tab.set_viewport_size({"width": width, "height": 900})
            tab.wait_for_timeout(300)  # the page finds its new form
            picture = TREE.build / "screenshots" / f"{page.removeprefix('book/').replace('/', '-')}-{theme}-{width}.png"
            picture.parent.mkdir(parents=True, exist_ok=True)
            tab.screenshot(path=str(picture), full_page=True)
            assert tab.evaluate(WIDER) == [], f"the page scrolls sideways at a width of {width}"
            assert_good(tab, seen)


def switch_to(tab, theme):
    tab.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
    tab.wait_for_timeout(600)  # colours change gradually


#: Controls in folds count as well
UNFOLD = "document.querySelectorAll('article details').forEach(fold => { fold.open = true; })"
TABBABLE = """() => [...document.querySelectorAll(
    ':is(a[href], button, input, select, textarea, summary, [tabindex="0"])')]
    .filter(e => !e.disabled && e.tabIndex >= 0 && e.checkVisibility({visibilityProperty: true}))"""


@pytest.mark.parametrize("page", PAGES)
def test_every_control_is_reached_by_keyboard(reading, page):
    """Tab goes through all controls of a page, each of which shows that it has the focus."""
    tab, _ = reading(page, SCREEN)
    tab.evaluate(UNFOLD)
    wanted = tab.evaluate(f"({TABBABLE})().map((e, i) => (e.dataset.test = i, i)).length")
    tab.evaluate("() => { document.body.tabIndex = -1; document.body.focus(); }")
    seen, bare = set(), []
    for _ in range(wanted + 20):
        tab.keyboard.press("Tab")
        here = tab.evaluate(
            """() => { const e = document.activeElement; const s = getComputedStyle(e);
            const radio = e.type === 'radio';
            return [e.dataset.test ?? null, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) > 0
                || s.boxShadow !== 'none' || radio, e.outerHTML.slice(0, 100)]; }"""
        )
        if here[0] is None:
            if len(seen) > 0:
                break
            continue
        seen.add(int(here[0]))
        if not here[1]:
            bare.append(here[2])
    missed = tab.evaluate(
        f"seen => ({TABBABLE})().filter(e => !seen.includes(Number(e.dataset.test)))"
        ".filter(e => e.type !== 'radio').map(e => e.outerHTML.slice(0, 100))",
        sorted(seen),
    )
    assert missed == [], "controls that Tab does not reach"
    assert bare == [], "controls that do not show the focus"


PICTURE = """control => {
    const figure = control.closest('figure, .csa-live, #csa-playground') || control.parentElement;
    return [...figure.querySelectorAll('svg, img, canvas')].map(e =>
        e.tagName === 'CANVAS' ? e.toDataURL() : e.tagName === 'IMG' ? e.src + getComputedStyle(e).display
        : getComputedStyle(e).display + e.outerHTML).join();
}"""


@pytest.mark.parametrize("page", [f"book/{chapter}" for chapter in TREE.chapters()])
def test_no_slider_is_dead(reading, page):
    """Every slider of a chapter, moved by keyboard, changes its picture and says its value."""
    tab, seen = reading(page, SCREEN)
    sliders = tab.query_selector_all("article input[type=range]")
    assert sliders
    for slider in sliders:
        slider.focus()
        pictures, values = [], []
        for key in ("Home", "End"):
            tab.keyboard.press(key)
            pictures.append(slider.evaluate(PICTURE))
            values.append(slider.get_attribute("aria-valuetext"))
        assert pictures[0] != pictures[1], "a slider that moves nothing"
        assert all(values), "a slider that does not say its value"
        assert values[0] != values[1]
    assert seen.errors == []


@pytest.mark.parametrize("page", [f"book/{chapter}" for chapter in TREE.chapters()])
def test_a_figure_is_on_the_first_screen(reading, page):
    tab, _ = reading(page, SCREEN)
    top = tab.evaluate(
        "Math.min(...[...document.querySelectorAll('article figure')].map(e => e.getBoundingClientRect().top))"
    )
    assert top < 800


CANVAS = "document.querySelector('.csa-live canvas').toDataURL()"


def test_the_front_page_moves_until_it_is_told_not_to(visit):
    tab, seen = visit("book/index", "file", SCREEN)
    button = tab.locator(".csa-live button")
    assert button.inner_text() == "Pause"
    first = tab.evaluate(CANVAS)
    tab.wait_for_timeout(800)
    assert tab.evaluate(CANVAS) != first
    button.focus()
    tab.keyboard.press("Enter")
    assert button.inner_text() == "Play"
    tab.wait_for_timeout(200)
    second = tab.evaluate(CANVAS)
    tab.wait_for_timeout(500)
    assert tab.evaluate(CANVAS) == second
    assert seen.errors == []


def test_the_front_page_rests_for_readers_who_want_that(visit):
    tab, seen = visit("book/index", "file", SCREEN, reduced_motion="reduce")
    assert tab.locator(".csa-live button").inner_text() == "Play"
    first = tab.evaluate(CANVAS)
    tab.wait_for_timeout(500)
    assert tab.evaluate(CANVAS) == first
    tab.click(".csa-live button")
    tab.wait_for_timeout(800)
    assert tab.evaluate(CANVAS) != first
    assert seen.errors == []


def test_the_front_page_hands_its_tokens_to_the_playground(visit):
    tab, seen = visit("book/index", "file", SCREEN)
    tab.click(".csa-live a")
    tab.wait_for_function("window.csaPlayground", timeout=30_000)
    state = tab.evaluate("csaPlayground.state()")
    assert (state["n"], state["beta"], state["d"]) == (110, 25, 2)
    assert seen.errors == []


def test_a_figure_opens_at_full_size(visit):
    tab, _ = visit(f"book/{TREE.chapters()[0]}", "file", PHONE)
    tab.locator("button.csa-zoom").first.focus()
    tab.keyboard.press("Enter")
    dialog = tab.locator("dialog.csa-zoom-dialog")
    assert dialog.is_visible()
    assert dialog.locator("img").bounding_box()["width"] > 600
    tab.keyboard.press("Escape")
    tab.wait_for_selector("dialog.csa-zoom-dialog", state="detached")


def test_search_works_from_disk(visit):
    tab, seen = visit("search", "file", SCREEN)
    tab.goto(tab.url.split("?")[0] + "?q=eigenspace")
    tab.wait_for_selector("#search-results li a[href*='eigenspace']", timeout=30_000)
    assert seen.external == []
    assert seen.errors == []


@pytest.mark.parametrize("page", [f"book/{chapter}" for chapter in TREE.chapters()])
def test_text_comes_first(site, browser, address, page):
    """The text is painted when the first 300 KB have come, even if nothing else ever does.

    First come the style sheets and the scripts that the page waits for, then as much
    of the page as is left; all else is withheld.
    """
    path = page_file(site, page)
    waits_for = [tag["href"] for tag in soup(path).select("link[rel=stylesheet]")]
    waits_for += [tag["src"] for tag in soup(path).select("script[src]:not([defer]):not([async])")]
    files = {local(path, link): local(path, link).read_bytes() for link in waits_for}
    left = MAX_BYTES_BEFORE_TEXT - sum(map(len, files.values()))
    assert left > 0
    beginning = path.read_bytes()[:left].decode("utf8", "ignore")

    def answer(route):
        asked = site / unquote(urlsplit(route.request.url).path).lstrip("/")
        if asked.resolve() == path.resolve():
            route.fulfill(body=beginning, content_type="text/html; charset=utf-8")
        elif asked.resolve() in files:
            route.continue_()
        else:
            route.abort()

    context = browser.new_context(viewport={"width": SCREEN, "height": 900})
    context.route("**/*", answer)
    tab = context.new_page()
    tab.goto(f"{address['http']}/{page}.html", wait_until="domcontentloaded", timeout=60_000)
    tab.wait_for_function("performance.getEntriesByName('first-contentful-paint').length", timeout=30_000)
    words = tab.inner_text("article")
    context.close()
    assert "Question." in words
    assert "Answer." in words
    assert len(words.split()) > 300


@pytest.mark.parametrize("page", PAGES)
def test_page_from_disk(reading, page):
    assert_good(*reading(page, SCREEN))


def test_front_page_leads_to_the_book(visit):
    tab, seen = visit("index", "file", SCREEN, calm=False)
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


AXE = Path(__file__).parent / "axe" / "axe.min.js"
#: axe-core's grades from "minor" to "critical"
SERIOUS = ("serious", "critical")


# Set mathematics is thousands of boxes that inherit their colour, and MathJax's own business
WITHOUT_MATH = "document.querySelectorAll('mjx-container').forEach(e => e.replaceWith('x'))"
AXE_RUN = "options => axe.run(document, {resultTypes: ['violations'], ...options})"


def violations(tab, **options) -> dict[str, list[str]]:
    """What axe-core finds serious or critical, by its rule."""
    tab.evaluate(AXE.read_text(encoding="utf8"))
    report = tab.evaluate(AXE_RUN, options)
    assert report["passes"], "axe-core has looked at nothing"
    return {
        rule["id"]: [f"{node['html'][:120]} {node['failureSummary'][:200]}" for node in rule["nodes"]]
        for rule in report["violations"]
        if rule["impact"] in SERIOUS
    }


@pytest.mark.parametrize("page", [*PAGES, "search", "genindex"])
def test_everyone_can_read_the_page(reading, page):
    """axe-core: names, roles, structure, and contrast of 4.5:1 for text.

    The last check of a page that is shared: it takes the mathematics away.
    """
    tab, _ = reading(page, SCREEN)
    tab.evaluate(f"{WITHOUT_MATH}; {UNFOLD}")
    assert violations(tab) == {}
    switch_to(tab, "dark")
    assert violations(tab, runOnly={"type": "rule", "values": ["color-contrast"]}) == {}, "in the dark"
    tab.set_viewport_size({"width": PHONE, "height": 900})
    tab.wait_for_timeout(300)  # boxes that now scroll become reachable
    narrow = ["scrollable-region-focusable", "button-name", "link-name", "image-alt", "aria-hidden-focus"]
    assert violations(tab, runOnly={"type": "rule", "values": narrow}) == {}, "on a phone"
    tab.close()


def test_axe_sees_what_is_wrong(visit):
    """The check above can fail: pale text, a picture and a button without a name."""
    tab, _ = visit(PAGES[0], "file", SCREEN)
    tab.evaluate(
        """document.querySelector('article').insertAdjacentHTML('afterbegin',
        '<p style="color: #bbb; background: #fff">pale</p><img src="data:,"><button></button>')"""
    )
    assert {"color-contrast", "image-alt", "button-name"} <= set(violations(tab))
