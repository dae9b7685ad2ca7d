"""One pytest session for everything: unit tests, chapters, build, pages.

The chapters start in two worker processes as soon as the tests are collected;
unit tests run meanwhile.  Then each chapter's case waits for its own run, the
site is built from these runs, and its pages are read.
"""

from __future__ import annotations

import http.server
import os
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from ci.browser import BROWSERS, find_browser, launch, settle
from ci.build_book import BuildFailed, build
from ci.chapters import Tree
from ci.judge import ChapterFailed
from ci.run_notebooks import Run, workers
from ci.warm import warm

_ORDER = ("chapters", "built", "pages")  # markers; unmarked tests come first
_KEY = pytest.StashKey()


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=None, help="seed for every chapter, not the published one")


def pytest_configure(config):
    config.addinivalue_line("markers", "chapters: waits for the run of a chapter")
    config.addinivalue_line("markers", "built: needs what all chapters or the build left")
    config.addinivalue_line("markers", "pages: reads the built pages")


def pytest_collection_modifyitems(items):
    def rank(item):
        return max((i + 1 for i, name in enumerate(_ORDER) if item.get_closest_marker(name)), default=0)

    items.sort(key=rank)  # stable: the order of the files stays


def pytest_collection_finish(session):
    """Start the chapters, but only those that were asked for."""
    config = session.config
    if config.option.collectonly:
        return
    chapters = [i.callspec.params["chapter"] for i in session.items if i.get_closest_marker("chapters")]
    if chapters:
        warm()
    seed = config.getoption("--seed")
    parameters = {} if seed is None else {"seed": seed}
    pool = workers(2)
    config.stash[_KEY] = (Run(Tree(), pool, chapters, parameters=parameters, fresh=True), pool)


def pytest_sessionfinish(session):
    if _KEY in session.config.stash:
        session.config.stash[_KEY][1].shutdown(wait=True, cancel_futures=True)


@pytest.fixture(scope="session")
def chapter_run(request) -> Run:
    """The run of the chapters of this session."""
    return request.config.stash[_KEY][0]


@pytest.fixture(scope="session")
def all_claims(chapter_run) -> list[dict]:
    """The claims of all chapters, every one of which has passed."""
    failures = chapter_run.failures()
    claims = chapter_run.gather()
    if failures:
        names = ", ".join(failures)
        pytest.fail(f"no claims to look at, because these chapters failed: {names}", pytrace=False)
    if claims is None:
        stale = [c for c in chapter_run.tree.chapters() if not chapter_run.is_current(c)]
        pytest.fail(f"these chapters have no up-to-date run: {', '.join(stale)} (make book)", pytrace=False)
    return claims


@pytest.fixture(scope="session")
def site(chapter_run, all_claims):
    """The folder of the site, built from the runs of this session."""
    try:
        return build(chapter_run.tree, fresh=True).parent
    except BuildFailed as error:
        failure = str(error)
    pytest.fail(f"the site was not built: {failure}", pytrace=False)  # outside: no chained tracebacks


@pytest.fixture
def passes(chapter_run):
    """A function that fails the test if a chapter did not pass."""

    def check(chapter: str) -> None:
        try:
            chapter_run.wait(chapter)
            return
        except ChapterFailed as error:
            failure = str(error)
        pytest.fail(failure, pytrace=False)

    return check


@pytest.fixture(scope="session")
def browser():
    """A running Chromium; a machine that calls itself CI must have one."""
    if find_browser() is None:
        reason = "NO BROWSER CHECKS: none of " + ", ".join(BROWSERS) + " is installed"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with launch() as started:
        yield started


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def address(site):
    """Where the site is served: http on this machine, or the files themselves."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {"http": f"http://127.0.0.1:{server.server_port}", "file": site.resolve().as_uri()}
        server.shutdown()


def _opener(browser, address, contexts):
    def open_page(page: str, how: str, width: int, height: int = 900, anchor: str = "", calm: bool = True, **options):
        seen = SimpleNamespace(external=[], failed=[], errors=[])
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)

        def guard(route):
            url = route.request.url
            if url.startswith((address[how], "data:", "blob:")):
                route.continue_()
            else:
                seen.external.append(url)
                route.abort()

        context.route("**/*", guard)
        tab = context.new_page()
        tab.on("console", lambda said: seen.errors.append(said.text) if said.type == "error" else None)
        tab.on("pageerror", lambda error: seen.errors.append(str(error)))
        tab.on("requestfailed", lambda request: seen.failed.append(request.url))
        tab.on("response", lambda answer: seen.failed.append(answer.url) if answer.status >= 400 else None)
        target = f"{address[how]}/{page}.html" + (f"#{anchor}" if anchor else "")
        tab.goto(target, wait_until="load", timeout=60_000)
        if calm:  # False for a page that leads on to another
            settle(tab)
        return tab, seen

    return open_page


@pytest.fixture
def visit(browser, address):
    """A function that opens a page with the network cut; it returns what went wrong as well."""
    contexts = []
    yield _opener(browser, address, contexts)
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def reading(browser, address):
    """A function like `visit`, from disk, at one width; each page is opened once for all checks.

    Setting mathematics takes seconds, so checks that leave a page as it was share it.
    """
    contexts, opened = [], {}
    open_page = _opener(browser, address, contexts)

    def read(page: str, width: int):
        if page not in opened:
            # at rest: a page that plays on would slow all others down
            opened[page] = open_page(page, "file", width, reduced_motion="reduce")
        tab, seen = opened[page]
        tab.set_viewport_size({"width": width, "height": 900})
        tab.evaluate("""() => { document.documentElement.dataset.theme = 'light'; scrollTo(0, 0);
            document.querySelectorAll('article .cell details').forEach(fold => { fold.open = false; }); }""")
        return tab, seen

    yield read
    for context in contexts:
        context.close()


_PLAYGROUND = "book/playground"
_ANSWERS = "window.csaPlayground !== undefined"


@pytest.fixture
def playground(visit):
    """A function that opens the playground; the tab answers when it is ready."""

    def open_page(how="file", width=1280, **options):
        tab, seen = visit(_PLAYGROUND, how, width, **options)
        tab.wait_for_function(_ANSWERS)
        return tab, seen

    return open_page


@pytest.fixture(scope="session")
def lab(browser, address):
    """One tab with the playground, for the tests that only compute in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.errors = []
    tab.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.goto(f"{address['file']}/{_PLAYGROUND}.html")
    tab.wait_for_function(_ANSWERS)
    yield tab
    context.close()
