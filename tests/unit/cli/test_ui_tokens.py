"""The page's colours: each text and each mark has enough contrast, in light and in dark mode."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from mqtune import cli
from mqtune.results import PALETTE

ASSETS: Final = Path(cli.__file__).parent / "ui" / "assets"
STYLE: Final = (ASSETS / "page.css").read_text(encoding="utf-8")
#: Grounds of texts and marks.
GROUNDS: Final = ("bg", "surface", "inset", "accent-weak")
TEXTS: Final = ("text", "soft", "accent", "completed", "running", "paused", "warn", "failed")
MARKS: Final = ("edge", "stopped")
#: Texts on grounds of their own.
PAIRS: Final = (
    ("on-accent", "accent"),
    ("on-accent", "failed"),
    ("text", "warn-weak"),
    ("text", "failed-weak"),
    ("accent", "warn-weak"),
    ("accent", "failed-weak"),
    ("warn", "warn-weak"),
    ("failed", "failed-weak"),
)


def tokens() -> dict[str, dict[str, str]]:
    """Return the tokens of both modes."""
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in STYLE.split("@media", 2)[:2])
    return {"light": light, "dark": light | dark}


def luminance(color: str) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    channels = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_each_token_has_enough_contrast_on_its_grounds(mode: str):
    found = tokens()[mode]

    texts = [*product(TEXTS, GROUNDS), *PAIRS]
    weak = [(one, on) for one, on in texts if contrast(found[one], found[on]) < 4.5]
    faint = [(one, on) for one, on in product(MARKS, GROUNDS) if contrast(found[one], found[on]) < 3]

    assert (weak, faint) == ([], [])


def test_pictures_have_the_tokens_of_light_mode_and_the_page_maps_each_to_its_token():
    light = tokens()["light"]
    mapped = dict(re.findall(r'"(#[0-9a-f]{6})": "--([\w-]+)"', (ASSETS / "pictures.js").read_text(encoding="utf-8")))

    assert {token: light[token] for token in PALETTE} == PALETTE
    assert mapped == {color: token for token, color in PALETTE.items()}


def test_no_script_writes_html_or_an_inline_style():
    forbidden = re.compile(r"\binnerHTML\b|\bouterHTML\b|insertAdjacentHTML|document\.write|\beval\(|\bstyle: [\"'`]")
    scripts = list(ASSETS.glob("*.js"))

    assert scripts
    assert [file.name for file in scripts if forbidden.search(file.read_text(encoding="utf-8"))] == []
