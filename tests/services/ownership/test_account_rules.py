from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.core.keys import AUDIT, DEMANDS, QUOTAS, SUBMISSIONS, ExperimentKeys, control_channel, drain_key, quota_key
from mqtune.journal import script_in
from mqtune.services.ownership.acl import ROLES, Role, account, password_hash, rules_of

#: The package.
PACKAGE: Final = Path(mqtune.__file__).parent


def scripts() -> dict[str, str]:
    """The text of each script, with what it uses of the functions that it shares with others."""
    found = {}
    for path in sorted(PACKAGE.rglob("lua/*.lua")):
        package = ".".join(("mqtune", *path.relative_to(PACKAGE).parts[:-2]))
        if path.stem != "prelude":
            assert path.stem not in found
            found[path.stem] = script_in(package, path.stem).text
    return found


def commands_of(text: str) -> set[str]:
    return {command.lower() for command in re.findall(r"(?:redis\.p?call|also_when_full)\('(\w+)'", text)}


def roles_of(name: str, text: str) -> list[Role]:
    """Who runs a script: those of drivers take a key that only drivers may have; anybody who may steer requests."""
    if re.search(r"^-- KEYS  1 (driver|demands|submission)", text, re.MULTILINE):
        return ["driver", "operator"] if name == "halt" else ["driver"]
    return ["driver", "worker", "operator"] if name == "request" else ["worker"]


def allowed(role: Role) -> set[str]:
    return {command for rule in rules_of(role) for command in rule.commands.split()} | {"time"}


@pytest.mark.parametrize("name", scripts())
def test_every_command_of_a_script_is_allowed_to_who_runs_it(name: str):
    text = scripts()[name]

    for role in roles_of(name, text):
        assert commands_of(text) <= allowed(role)


@pytest.mark.parametrize(
    ("role", "options"), [("worker", {}), ("driver", {"experiments": "team-a-*"}), ("operator", {}), ("monitor", {})]
)
def test_the_names_of_all_keys_are_for_a_driver_that_asks_for_them(role: Role, options: dict[str, str]):
    with pytest.raises(ConfigurationError, match="mqtune fleet acl driver --all-keys"):
        rules_of(role, all_keys=True, **options)  # type: ignore[arg-type]

    assert "scan" in {command for rule in rules_of("driver", all_keys=True) for command in rule.commands.split()}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_gets_a_command_that_reaches_all_keys_nor_a_key_of_other_experiments_nor_a_drivers(role: Role):
    dangerous = "flushall flushdb config keys scan acl shutdown debug monitor migrate swapdb"
    assert not allowed(role) & {*dangerous.split()}
    assert not any("@" in command for command in allowed(role)), "a category grows with each version of Redis"

    found = re.findall(r"mqtune:x:(\S+)", " ".join(str(rule) for rule in rules_of(role, experiments="team-a-*")))
    assert found
    assert all(key.startswith("{team-a-*}:") for key in found)
    if role != "driver":
        assert ExperimentKeys("team-a-*").submitted_code not in " ".join(found)
        whole = " ".join(str(rule) for rule in rules_of(role, remote_control=role == "monitor"))
        assert ":driver" not in whole
        assert "restored" not in whole


def test_a_monitor_only_reads_and_an_operator_reads_and_requests_and_does_nothing_else():
    rules = rules_of("monitor")
    assert all(key.startswith("%R~") for rule in rules for key in rule.keys)
    assert all(command == "subscribe" for rule in rules if rule.channels for command in rule.commands.split())
    more = [rule for rule in rules_of("operator") if str(rule) not in {*map(str, rules)}]

    kept = ExperimentKeys("*")
    own = {kept.meta, kept.journal, kept.requests, kept.submission, kept.asked("*"), kept.log("*")}
    shared = {SUBMISSIONS, QUOTAS, f"%R~{QUOTAS}", f"%W~{AUDIT}", drain_key("*"), f"%R~{kept.trial('*')}"}
    assert {key for rule in more for key in rule.keys} == own | shared
    # A team does not set its own quota, and drains no worker that others use too.
    of_team = map(str, rules_of("operator", experiments="team-a-*"))
    assert [rule for rule in of_team if QUOTAS in rule or drain_key("") in rule] == [
        f"+hgetall +zcount %R~{DEMANDS} %R~{QUOTAS} %R~{quota_key('*')}",
        f"+hexists %R~{QUOTAS}",
    ]
    assert {channel for rule in more for channel in rule.channels} == {kept.metrics, control_channel("*")}
    assert not {command for rule in more for command in rule.commands.split()} & {"del", "xtrim", "xdel", "rename"}


def test_a_line_carries_a_hash_and_no_password():
    line = account("gpu", password_hash("secret"), rules_of("worker"))

    assert line.startswith(
        "ACL SETUSER gpu on clearselectors #2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b "
    )
    assert "secret" not in line
    assert "\n" not in line


@pytest.mark.parametrize("experiments", ["", "a b", "a]", "[ab]", "a\\*", "a}:driver", "a" * 101])
def test_what_can_not_be_names_is_refused(experiments: str):
    with pytest.raises(ConfigurationError, match="can't be names of experiments"):
        rules_of("worker", experiments=experiments)
