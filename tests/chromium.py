"""A browser for tests of pages. Selenium is imported where one is started, as every process of a run collects its tests."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

__all__ = ["BACKSPACE", "ESCAPE", "HOME", "NEEDS_CHROMIUM", "SPACE", "TAB", "started_chromium"]

_CHROMIUM: Final = shutil.which("chromium")
_DRIVER: Final = shutil.which("chromedriver")
#: A mark for tests that need a browser.
NEEDS_CHROMIUM: Final = pytest.mark.skipif(
    not (_CHROMIUM and _DRIVER), reason="there is no chromium with its chromedriver"
)
_FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--disable-extensions", "--window-size=1300,1400"),
)
#: Keys without a character, as WebDriver sends them.
BACKSPACE, TAB, ESCAPE, SPACE, HOME = "\ue003", "\ue004", "\ue00c", "\ue00d", "\ue011"


@contextlib.contextmanager
def started_chromium(profile: Path) -> Iterator[Any]:
    """Yield a browser's driver, which keeps all that the browser logs; the browser is gone afterwards.

    Args:
        profile: a folder for the browser's files.
    """
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = _CHROMIUM or ""
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_DRIVER))
    try:
        yield driver
    finally:
        driver.quit()
