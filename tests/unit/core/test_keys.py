from __future__ import annotations

import re
from pathlib import Path

import mqtune
from mqtune.core import keys
from mqtune.core.keys import (
    DEMANDS,
    EXPERIMENTS,
    FLEET,
    IDENTITY,
    QUOTAS,
    SHARES,
    SUBMISSIONS,
    UNACKED,
    WORKERS,
    ExperimentKeys,
    control_channel,
    drain_key,
    name_key,
    quota_key,
    worker_key,
)


def keys_of(experiment: str) -> list[str]:
    found = ExperimentKeys(experiment)
    of_all = [found.meta, found.driver, found.journal, found.metrics, found.leases, found.staged, found.checkpoints]
    return [*of_all, found.submission, found.submitted_code, found.restored("0"), found.trial("0001")]


def hash_tag(key: str) -> str:
    """What a Redis Cluster picks a key's slot by: the text in the first pair of braces."""
    tag = re.search(r"\{(.+?)\}", key)
    return tag[1] if tag else key


def test_all_keys_of_an_experiment_lie_in_one_slot_of_a_cluster() -> None:
    assert {hash_tag(key) for key in keys_of("mnist-asha")} == {"mnist-asha"}


def test_no_two_things_share_a_key() -> None:
    names = ["a", "b", "a:meta", "a.b", "trial", "checkpoints", "0001"]
    found = [key for name in names for key in keys_of(name)]
    found += [
        FLEET,
        WORKERS,
        EXPERIMENTS,
        IDENTITY,
        DEMANDS,
        QUOTAS,
        SUBMISSIONS,
        SHARES,
        quota_key("a"),
        quota_key("a*"),
        worker_key("a"),
        worker_key("b"),
        name_key("a"),
        control_channel("a"),
        control_channel("b"),
    ]
    found += [ExperimentKeys("a").trial("0002")]

    assert len(set(found)) == len(found)


def test_every_key_is_described_where_keys_are_made() -> None:
    described = keys.__doc__ or ""
    shown = {key.replace("{E}", "{{E}}") for key in re.findall(r"mqtune:\S+", described)}
    made = {
        FLEET,
        WORKERS,
        EXPERIMENTS,
        IDENTITY,
        name_key("<worker>"),
        worker_key("<worker>"),
        control_channel("<worker>"),
    }
    experiment = ExperimentKeys("E")
    made |= {key for name, key in vars(experiment).items() if not name.startswith("_")}
    made |= {experiment.trial("<trial>"), experiment.restored("<mark>"), drain_key("<worker>")}
    made |= {experiment.asked("<worker>"), experiment.usage("<worker>")}
    made |= {experiment.log("<token>"), DEMANDS, QUOTAS, SHARES, SUBMISSIONS, quota_key("<pattern>"), *UNACKED.values()}

    assert shown == {key.replace("{E}", "{{E}}") for key in made}


def test_every_field_of_a_hash_is_described_where_keys_are_made() -> None:
    described = set(re.findall(r"^ +(?:mqtune\S+ +hash +)?([a-z_]+)  ", keys.__doc__ or "", flags=re.MULTILINE))
    folder = Path(mqtune.__file__).parent / "journal" / "lua"
    fields = set()
    for script in folder.glob("*.lua"):
        for call in re.findall(
            r"'(?:HGET|HMGET|HSET|HSETNX|HINCRBY)', (?:KEYS\[\w+\]|meta|driver)((?:, *\s*[^,()]+)+)", script.read_text()
        ):
            fields |= set(re.findall(r"'([a-z_]+)'", call))

    fields -= {"ended", "staged", "running", "waiting", "stopped"}
    assert fields
    assert fields <= described


def test_nobody_else_spells_a_key_out() -> None:
    root = Path(mqtune.__file__).parent
    files = [path for pattern in ("*.py", "*.lua") for path in root.rglob(pattern) if path != root / "core" / "keys.py"]

    assert len(files) > 30
    assert [path.name for path in files if re.search(r"['\"]mqtune:[a-z{]", path.read_text())] == []
