"""The pictures of the recorded experiments, as plain data.

    python tests/recorded/drawn.py

draws anew those of this folder, ``pictures/EXPERIMENT.json``. Of long series a hash stands for the points; floats are rounded.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from mqtune.core.errors import MqtuneError
from mqtune.journal import JOURNAL_FILE
from mqtune.results.plots.plots import KINDS
from mqtune.results.results import Results

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE / "pictures"
EXPERIMENTS: Final = sorted(path.parent.name for path in HERE.glob(f"*/{JOURNAL_FILE}"))
_DIGITS: Final = 8
#: The longest list that stands in a file as it is.
_LONGEST: Final = 12


def drawn(name: str) -> dict[str, Any]:
    """Return all pictures of an experiment by their kinds; in place of one that can't be drawn, why."""
    plot = Results.load(HERE / name).plot
    return {kind: _drawn(getattr(plot, kind)) for kind in KINDS}


def _drawn(method: Any) -> Any:
    try:
        return _plain(asdict(method()))
    except MqtuneError as error:
        return str(error)


def _plain(value: Any) -> Any:
    # A scalar of NumPy's.
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    if isinstance(value, str | int | None):
        return value
    plain = [_plain(each) for each in value]
    if len(plain) <= _LONGEST or isinstance(plain[0], dict):
        return plain
    return f"{len(plain)}: {sha256(json.dumps(plain).encode()).hexdigest()[:16]}"


if __name__ == "__main__":
    for experiment in EXPERIMENTS:
        text = json.dumps(drawn(experiment), sort_keys=True, separators=(",", ":"))
        (FOLDER / f"{experiment}.json").write_text(text.replace('],"', '],\n"') + "\n")
