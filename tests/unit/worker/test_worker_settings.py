"""A worker's settings: valid ones, and refused ones of Celery."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery.bin.worker import worker as celery_worker
from waiting import ended_process as ended

from mqtune.cli import settings_from_environment
from mqtune.core.errors import ConfigurationError, NameTaken, WorkerStartError
from mqtune.core.machine import describe_process, process_mark, started_at
from mqtune.services.settings import worker_settings
from mqtune.worker import (
    OWNED_SETTINGS,
    WorkerSettings,
    check_concurrency,
    check_folders,
    check_options,
    check_settings,
    take_name,
)

BROKER, KEY = "redis://head:6379/0", "a key of sixteen letters"
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


def test_settings_are_what_the_environment_says_and_empty_variables_are_not_given(given: Given) -> None:
    names = "gpus slots_per_gpu cpus slots gpu_memory tags code_root log_root user grace experiments owner_fd remote_control"
    assert given(**dict.fromkeys(names.split(), "")) == given() == worker_settings({"broker": BROKER})
    assert [given(grace=grace).grace_s for grace in ("92.5", "0.0", "86400")] == [92.5, 0.0, 86_400.0]
    some = given(remote_control="0", experiments="team-a-*")
    assert (some.remote_control, some.experiments) == (False, "team-a-*")
    alone = given(drivers="2", slots="0", code_key=KEY)
    assert alone.plan().devices == ()
    assert {*given(accept_code="1", code_key=KEY).plan().offer.tags} == {"accepts-code"}
    assert KEY not in repr(alone)
    assert not given(code_key=KEY).plan().offer.tags
    with pytest.raises(ConfigurationError, match="--slots 0: must be at least 1"):
        given(slots="0").plan()


NUMBERS = ("grace", "slots", "cpus", "slots_per_gpu", "gpus_per_slot", "remote_control")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        *(("grace", value, r"--grace .* is invalid.*from 0 to 86400") for value in ("-1", "nan", "inf", "120000")),
        *((name, "2 min", f"--{name.replace('_', '-')}.*'2 min' is not a valid") for name in NUMBERS),
        ("experiments", "team/a", "can't be names of experiments"),
        ("drivers", "2", "--drivers needs MQTUNE_CODE_KEY"),
        ("accept_code", "1", r"--accept-code needs MQTUNE_CODE_KEY.*is not set.*openssl rand"),
        ("drivers", "-1", "--drivers -1: must be at least 0"),
        ("driver_broker", "redis://driver:x@head", "--driver-broker is for the scripts .*give --drivers"),
    ],
)
def test_an_invalid_setting_is_refused_by_its_option(given: Given, name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        given(**{name: value})


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("pool", ", because trials need mqtune's own pool"),
        ("queues", ""),
        ("exclude_queues", ""),
        ("time_limit", ", because the experiment limits how long a trial may take"),
        ("max_tasks_per_child", ", because each trial has a process of its own"),
        ("prefetch_multiplier", ""),
    ],
)
def test_an_option_of_celerys_that_would_do_harm_or_nothing_is_refused(option: str, why: str) -> None:
    asked: list[str] = []
    check_options(lambda name: bool(asked.append(name)))
    assert {option, *asked} <= {parameter.name for parameter in celery_worker.params}

    refused = f"--{option.replace('_', '-')} can't be used{why}.*leave the option out"
    with pytest.raises(WorkerStartError, match=refused):
        check_options(lambda name: name == option)


def test_another_concurrency_and_a_missing_code_root_are_refused(tmp_path: Path) -> None:
    for same in (None, 0, 4):
        check_concurrency(same, 4)
    for concurrency in (1, "auto"):
        with pytest.raises(WorkerStartError, match=f"--concurrency {concurrency}: this worker has 4.*MQTUNE_SLOTS"):
            check_concurrency(concurrency, 4)
    with pytest.raises(ConfigurationError, match=r"code root .*/nowhere is not a folder"):
        check_folders(tmp_path / "nowhere", tmp_path)


class Names:
    """A fleet in which another worker has the name. Time passes only in ``sleep``."""

    def __init__(self, process: str, *, is_kept: bool = False) -> None:
        self.holder, self.is_kept = f"{process} token", is_kept
        self.left_s, self.slept_s = 15.0, 0.0

    def take_name(self, name: str, hold_s: float, *, dead: str = "") -> None:
        if self.holder != dead and self.left_s > 0:
            raise NameTaken(f"the fleet has a worker {name} ({self.holder})", holder=self.holder, left_s=self.left_s)
        self.holder = "mine"

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.left_s = 15.0 if self.is_kept and self.slept_s > 3 else self.left_s - seconds

    def take(self) -> str:
        take_name(self, "gpu@a", 15.0, sleep=self.sleep)  # type: ignore[arg-type]
        return self.holder


def process(pid: int, mark: str = "") -> str:
    return f"process {pid} on {socket.gethostname()} ({mark or process_mark()})"


ELSEWHERE = "0123456789abcdef.77"


def test_the_name_of_a_living_worker_is_refused_with_the_way_out() -> None:
    parent = os.getppid()
    here = Names(process(parent, f"{process_mark().split('.')[0]}.{started_at(parent)}"))
    # Process numbers of another machine mean nothing here, under any name.
    elsewhere = Names(process(ended(), ELSEWHERE), is_kept=True)

    for names in (here, elsewhere):
        with pytest.raises(WorkerStartError, match=r"process \d+ on .*; give this worker another name: --name gpu1"):
            names.take()

    assert (here.slept_s, elsewhere.slept_s < 15) == (0, True)


def test_the_name_of_a_dead_worker_is_taken_and_on_another_machine_once_it_has_run_out() -> None:
    for holder, waits in ((process(ended()), False), (describe_process(), False), (process(ended(), ELSEWHERE), True)):
        names = Names(holder)

        assert names.take() == "mine"
        assert names.slept_s >= 15 if waits else names.slept_s == 0


@pytest.mark.parametrize(("name", "value"), [("task_acks_late", True), ("worker_disable_prefetch", False)])
def test_a_setting_of_celerys_that_was_changed_is_named_with_both_values(name: str, value: bool) -> None:
    changed = SimpleNamespace(**{**OWNED_SETTINGS, name: value})

    with pytest.raises(WorkerStartError, match=f"{name} is {value}, but trials need {OWNED_SETTINGS[name]}"):
        check_settings(changed)
