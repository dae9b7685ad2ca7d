"""The installed Chromium: it checks the built pages and prints them.

Nothing is downloaded: Playwright drives whichever Chromium the machine has.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["BROWSERS", "FLAGS", "find_browser", "launch", "settle"]

#: Programs that will do, the best first.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "brave-browser")

#: Quiet, without network business of its own, and the same picture on every machine.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


def find_browser() -> str | None:
    """Path of the first installed program of `BROWSERS`, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def launch() -> Iterator:
    """A running headless Chromium, as Playwright's ``Browser``.

    Raises
    ------
    FileNotFoundError
        If none of `BROWSERS` is installed.
    """
    path = find_browser()
    if path is None:
        raise FileNotFoundError(f"a browser must be installed, one of {', '.join(BROWSERS)}; got none of them")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, headless=True)
        try:
            yield browser
        finally:
            browser.close()


def settle(tab) -> None:
    """Wait until a page is loaded to its end and its mathematics is set."""
    tab.evaluate("document.querySelectorAll('img[loading=lazy]').forEach(image => { image.loading = 'eager'; })")
    tab.wait_for_function(
        "!document.querySelector('.math') || (window.MathJax && MathJax.startup && MathJax.startup.promise)",
        timeout=60_000,
    )
    tab.evaluate("window.MathJax && MathJax.startup ? MathJax.startup.promise.then(() => 0) : 0")
    tab.wait_for_load_state("networkidle", timeout=60_000)
