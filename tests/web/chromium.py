"""The system's Chromium, as tests drive it. No wheel brings it: without it, they are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("there is no chromium on the path: apt-get install chromium")
    # Its sandbox does not work for root, which tests in containers often are.
    options = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=options)
        try:
            yield started
        finally:
            started.close()


def heard(page: Page) -> list[str]:
    """What the page complains of from now on: errors, and what its policy has blocked."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text))
    page.on("pageerror", lambda error: found.append(str(error)))
    return found
