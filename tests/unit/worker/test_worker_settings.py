"""A worker's settings: what an operator may say, and which of Celery's are refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from mqtune.cli import group
from mqtune.cli.worker import settings_from_environment
from mqtune.core.errors import ConfigurationError, NameTaken, WorkerStartError
from mqtune.core.machine import describe_process, process_mark, started_at
from mqtune.worker import (
    GRACE_S,
    LONGEST_GRACE_S,
    OWNED_SETTINGS,
    WorkerSettings,
    check_concurrency,
    check_folders,
    check_options,
    check_settings,
    owned_settings,
    take_name,
)

BROKER = "redis://head:6379/0"


Given = Callable[..., WorkerSettings]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Returns the settings of an environment with some of a worker's variables."""

    def settings(**values: str) -> WorkerSettings:
        for variable in [name for name in os.environ if name.startswith("MQTUNE_")]:
            monkeypatch.delenv(variable)
        for name, value in {"broker": BROKER, **values}.items():
            monkeypatch.setenv(f"MQTUNE_{name.upper()}", value)
        return settings_from_environment()

    return settings


def test_variables_that_are_empty_are_not_given(given: Given) -> None:
    names = "gpus slots_per_gpu cpus slots gpu_memory tags code_root log_root user grace experiments owner_fd remote_control"

    assert given(**dict.fromkeys(names.split(), "")) == given() == WorkerSettings(broker=BROKER)


def test_the_grace_is_what_the_environment_says_and_may_be_none_or_long(given: Given) -> None:
    for value in (92.5, 0.0, 10.0, LONGEST_GRACE_S):
        assert given(grace=str(value)).grace_s == value
    assert given().grace_s == GRACE_S


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "120000"])
def test_a_grace_that_makes_no_sense_is_refused(given: Given, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--grace .* is invalid.*from 0 to 86400"):
        given(grace=value)
    done = CliRunner().invoke(group, ["worker", "--broker", BROKER, "--grace", value])
    assert isinstance(done.exception, ConfigurationError), "the command does so before it connects"


@pytest.mark.parametrize("name", ["grace", "slots", "cpus", "slots_per_gpu", "gpus_per_slot", "remote_control"])
def test_a_number_that_is_none_is_refused_with_the_name_of_its_option(given: Given, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--{name.replace('_', '-')}.*'2 min' is not a valid"):
        given(**{name: "2 min"})


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("pool", "--pool can't be used, because trials need mqtune's own pool"),
        ("queues", "--queues can't be used"),
        ("exclude_queues", "--exclude-queues can't be used"),
        ("time_limit", "--time-limit can't be used, because the experiment limits how long a trial may take"),
        ("max_tasks_per_child", "--max-tasks-per-child can't be used, because each trial has a process of its own"),
        ("prefetch_multiplier", "--prefetch-multiplier can't be used"),
    ],
)
def test_an_option_that_would_do_harm_or_nothing_is_refused(option: str, named: str) -> None:
    with pytest.raises(WorkerStartError, match=f"{named}.*leave the option out"):
        check_options(lambda name: name == option)


def test_the_refused_options_are_celerys_names_for_them() -> None:
    from celery.bin.worker import worker

    asked: list[str] = []
    check_options(lambda name: bool(asked.append(name)))

    assert {*asked} <= {parameter.name for parameter in worker.params}


@pytest.mark.parametrize(("name", "value"), [("task_acks_late", True), ("worker_disable_prefetch", False)])
def test_a_setting_that_was_changed_is_named_with_both_values(name: str, value: Any) -> None:
    changed = SimpleNamespace(**{**OWNED_SETTINGS, name: value})

    with pytest.raises(WorkerStartError, match=f"{name} is {value}, but trials need {OWNED_SETTINGS[name]}"):
        check_settings(changed)


@pytest.mark.parametrize("concurrency", [1, "auto"])
def test_another_concurrency_is_refused_with_the_way_to_choose(concurrency: object) -> None:
    for same in (None, 0, 4):
        check_concurrency(same, 4)

    with pytest.raises(WorkerStartError, match=f"--concurrency {concurrency}: this worker has 4 slots.*MQTUNE_SLOTS"):
        check_concurrency(concurrency, 4)


def test_a_code_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"code root .*/nowhere is not a folder"):
        check_folders(tmp_path / "nowhere", tmp_path)


class Names:
    """The names of workers, of which one is held; time passes while somebody sleeps."""

    def __init__(self, name: str, process: str, *, is_kept: bool = False) -> None:
        self.held = {name: f"{process} token"}
        self.is_kept = is_kept
        self.left_s = 15.0
        self.slept_s = 0.0

    def take_name(self, name: str, hold_s: float, *, dead: str = "") -> None:
        holder = self.held.get(name, "")
        if holder and holder != dead and self.left_s > 0:
            raise NameTaken(f"the fleet has a worker {name} ({holder})", holder=holder, left_s=self.left_s)
        self.held[name] = "mine"

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.left_s = 15.0 if self.is_kept and self.slept_s > 3 else self.left_s - seconds

    def take(self, name: str) -> str:
        take_name(self, name, 15.0, sleep=self.sleep)  # type: ignore[arg-type]
        return self.held[name]


def process(pid: int, mark: str = "") -> str:
    return f"process {pid} on {socket.gethostname()} ({mark or process_mark()})"


def gone() -> int:
    """The id of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    return ended.pid


ELSEWHERE = "0123456789abcdef.77"


def test_a_name_that_a_living_worker_has_is_refused_at_once_with_the_way_out() -> None:
    parent = os.getppid()
    place = process_mark().split(".")[0]
    names = Names("gpu@a", process(parent, f"{place}.{started_at(parent)}"))

    with pytest.raises(WorkerStartError, match=r"process \d+ on .*; call this one otherwise: --name gpu1"):
        names.take("gpu@a")

    assert names.slept_s == 0


def test_a_name_that_a_worker_of_another_machine_keeps_is_refused() -> None:
    """Whatever that machine's name is: process numbers mean nothing here."""
    names = Names("gpu@a", process(gone(), ELSEWHERE), is_kept=True)

    with pytest.raises(WorkerStartError, match="call this one otherwise"):
        names.take("gpu@a")

    assert names.slept_s < 15


def test_a_name_that_a_worker_of_another_machine_does_not_keep_is_free_when_it_has_run_out() -> None:
    names = Names("gpu@a", process(gone(), ELSEWHERE))

    assert names.take("gpu@a") == "mine"
    assert names.slept_s >= 15


def test_a_name_of_a_worker_that_was_killed_or_begins_anew_in_its_process_can_be_taken_at_once() -> None:
    for holder in (process(gone()), describe_process()):
        names = Names("gpu@a", holder)

        assert names.take("gpu@a") == "mine"
        assert names.slept_s == 0


def test_a_worker_without_remote_control_sends_events_without_being_asked() -> None:
    on, off = (owned_settings(WorkerSettings(broker="redis://h", remote_control=is_on)) for is_on in (True, False))

    assert (on["worker_enable_remote_control"], on["worker_send_task_events"]) == (True, False)
    assert (off["worker_enable_remote_control"], off["worker_send_task_events"]) == (False, True)
    with pytest.raises(WorkerStartError, match="worker_enable_remote_control is True, but trials need False"):
        check_settings(SimpleNamespace(**on), off)


def test_the_environment_switches_remote_control_off_and_names_experiments(given: Given) -> None:
    settings = given(remote_control="0", experiments="team-a-*")

    assert (settings.remote_control, settings.experiments) == (False, "team-a-*")
    with pytest.raises(ConfigurationError, match="can't be names of experiments"):
        given(experiments="team/a")


def test_driver_slots_need_the_key_of_code_and_a_worker_may_have_no_other(given: Given) -> None:
    with pytest.raises(ConfigurationError, match=r"--drivers needs MQTUNE_CODE_KEY"):
        given(drivers="2")
    with pytest.raises(ConfigurationError, match=r"--drivers -1: must be at least 0"):
        given(drivers="-1")
    with pytest.raises(ConfigurationError, match=r"--driver-broker is for the scripts .*give --drivers"):
        given(driver_broker="redis://driver:x@head")
    alone = given(drivers="2", slots="0", code_key="a key of sixteen letters")
    assert (alone.drivers, alone.plan().devices) == (2, ())
    with pytest.raises(ConfigurationError, match=r"--slots 0: must be at least 1"):
        given(slots="0").plan()
