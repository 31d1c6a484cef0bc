"""A real Chromium, which the tests of the page and the screenshots drive."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

MISSING = "there is no Chromium, so the page is not tried in a browser. To have it: sudo apt-get install chromium"


def executable() -> str | None:
    """Return the path of the Chromium of this machine, None if there is none."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """Yield a browser without a window."""
    # Chromium's sandbox does not run as root.
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        try:
            yield browser
        finally:
            browser.close()
