"""One pytest session for everything: unit tests, chapters, build, pages.

The chapters start in two worker processes as soon as the tests are collected;
unit tests run meanwhile.  Then each chapter's case waits for its own run, the
site is built from these runs, and its pages are read.
"""

from __future__ import annotations

import pytest

from ci.build_book import BuildFailed, build
from ci.chapters import Tree
from ci.judge import ChapterFailed
from ci.run_notebooks import Run, workers

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
