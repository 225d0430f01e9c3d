from __future__ import annotations

import re
from pathlib import Path

import mqtune
from mqtune.core.keys import ExperimentKeys


def test_all_keys_of_an_experiment_lie_in_one_slot_of_a_cluster() -> None:
    found = ExperimentKeys("mnist-asha")
    keys = [key for key in vars(found).values() if not key.endswith(":")]
    keys += [found.restored("0"), found.trial("0001"), found.asked("w"), found.log("t"), found.usage("w")]

    # A Redis Cluster picks a key's slot by the text in the first pair of braces.
    assert {re.findall(r"\{(.+?)\}", key)[0] for key in keys} == {"mnist-asha"}


def test_nobody_else_spells_a_key_out() -> None:
    root = Path(mqtune.__file__).parent
    files = [path for pattern in ("*.py", "*.lua") for path in root.rglob(pattern) if path != root / "core" / "keys.py"]

    assert len(files) > 30
    assert [path.name for path in files if re.search(r"['\"]mqtune:[a-z{]", path.read_text())] == []
