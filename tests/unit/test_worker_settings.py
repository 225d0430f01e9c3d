"""What an operator says about a worker is taken as it is meant, and nonsense is refused with the way out."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from mqtune.cli import group
from mqtune.cli.worker import command
from mqtune.core.errors import ConfigurationError
from mqtune.worker.settings import GRACE_S, LONGEST_GRACE_S, WorkerSettings

BROKER = "redis://head:6379/0"


def test_the_grace_is_what_the_environment_says() -> None:
    assert WorkerSettings.from_environment({"MQTUNE_BROKER": BROKER, "MQTUNE_GRACE": "92.5"}).grace_s == 92.5
    assert WorkerSettings.from_environment({"MQTUNE_BROKER": BROKER}).grace_s == GRACE_S


def test_the_command_has_the_same_grace() -> None:
    (option,) = [parameter for parameter in command.params if parameter.name == "grace"]

    assert option.default == GRACE_S


@pytest.mark.parametrize("value", [0.0, 10.0, LONGEST_GRACE_S])
def test_a_grace_may_be_none_and_may_be_long(value: float) -> None:
    assert WorkerSettings(broker=BROKER, grace_s=value).grace_s == value


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "120000"])
def test_a_grace_that_makes_no_sense_is_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--grace .* makes no sense.*from 0 to 86400"):
        WorkerSettings.from_environment({"MQTUNE_BROKER": BROKER, "MQTUNE_GRACE": value})


def test_a_grace_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="MQTUNE_GRACE='2 min' is not a number of seconds"):
        WorkerSettings.from_environment({"MQTUNE_BROKER": BROKER, "MQTUNE_GRACE": "2 min"})


def test_the_command_refuses_it_before_it_connects() -> None:
    done = CliRunner().invoke(group, ["worker", "--broker", BROKER, "--grace", "-1"])

    assert isinstance(done.exception, ConfigurationError)
    assert "--grace -1" in str(done.exception)
