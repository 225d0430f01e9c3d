"""Takes the two pictures of docs/ui.md: python docs/_site/ui_pictures.py URL, where `mqtune ui NAME` serves URL."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Final

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

FOLDER: Final = Path(__file__).parents[1] / "files"
FLAGS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,1000")
#: Number of colours, and seconds until the charts are drawn.
COLORS: Final = 96
DRAWN_S: Final = 8


def main(url: str) -> None:
    """Take both."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    driver.get(url)
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        time.sleep(DRAWN_S)
        image = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
        image.quantize(COLORS, dither=Image.Dither.NONE).save(FOLDER / f"ui-{scheme}.png", optimize=True)
    driver.quit()


if __name__ == "__main__":
    main(sys.argv[1])
