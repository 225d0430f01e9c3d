"""Runs examples, and draws the gallery's pictures of these runs: python docs/_site/gallery_pictures.py [NAME …]."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image

from mqtune.journal import JOURNAL_FILE
from mqtune.results.results import Results

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "files" / "gallery"
#: By the names of the pictures: the example that is run, and the kind of picture.
PICTURES: Final = {
    "digits": ("digits.py", "curves"),
    "pbt": ("pbt.py", "lineage"),
    "promotion": ("promotion.py", "rungs"),
    "script_trainable": ("script_trainable/tune_script.py", "history"),
    "train_lightning": ("train_lightning.py", "timeline"),
    "train_pytorch": ("train_pytorch.py", "rungs"),
    "train_sklearn": ("train_sklearn.py", "slices"),
    "train_torchrun": ("train_torchrun/tune.py", "history"),
    "train_transformers": ("train_transformers.py", "parallel"),
    "train_xgboost": ("train_xgboost.py", "importances"),
    "trainable_class": ("trainable_class.py", "timeline"),
}
#: As many as the format has: with fewer, rare ones of a legend turn into others.
COLORS: Final = 256


def main(names: list[str]) -> None:
    """Draw those of the names, or all."""
    for name in names or PICTURES:
        with tempfile.TemporaryDirectory() as home:
            example = ROOT / "examples" / PICTURES[name][0]
            subprocess.run(
                [sys.executable, example],
                cwd=home,
                env={**os.environ, "MQTUNE_HOME": home},
                stdout=sys.stderr,
                check=True,
            )
            (journal,) = Path(home).glob(f"*/{JOURNAL_FILE}")
            draw(name, journal.parent)


def draw(name: str, experiment: Path) -> None:
    """Draw the picture of a run."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.png"
    getattr(Results.load(experiment).plot, PICTURES[name][1])().save(str(path))
    with Image.open(path) as image:
        fewer = image.convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    fewer.save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
