from __future__ import annotations

import re
from pathlib import Path

import mqtune
from mqtune.core.keys import ExperimentKeys


def keys_of(experiment: str) -> list[str]:
    found = ExperimentKeys(experiment)
    whole = [key for key in vars(found).values() if not key.endswith(":")]
    return [*whole, found.restored("0"), found.trial("0001"), found.asked("w"), found.log("t"), found.usage("w")]


def hash_tag(key: str) -> str:
    """What a Redis Cluster picks a key's slot by: the text in the first pair of braces."""
    tag = re.search(r"\{(.+?)\}", key)
    return tag[1] if tag else key


def test_all_keys_of_an_experiment_lie_in_one_slot_of_a_cluster() -> None:
    assert {hash_tag(key) for key in keys_of("mnist-asha")} == {"mnist-asha"}


def test_nobody_else_spells_a_key_out() -> None:
    root = Path(mqtune.__file__).parent
    files = [path for pattern in ("*.py", "*.lua") for path in root.rglob(pattern) if path != root / "core" / "keys.py"]

    assert len(files) > 30
    assert [path.name for path in files if re.search(r"['\"]mqtune:[a-z{]", path.read_text())] == []
