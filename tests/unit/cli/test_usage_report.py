"""``mqtune usage`` over the folders of this machine."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mqtune.cli import group
from mqtune.core.events import (
    START,
    AttemptEnded,
    AttemptStarted,
    DriverStarted,
    Event,
    ExperimentCreated,
    ExperimentEnded,
    TrialStaged,
)
from mqtune.core.resources import Resources, queue_name
from mqtune.core.trial import AttemptEnd, TrialId
from mqtune.journal import JOURNAL_FILE, Entry, JournalFile

HOUR = 3600.0
#: When all experiments here began: before any time that is looked at.
BEGAN = 1_700_000_000.0


def ago(hours: float) -> float:
    """As of now: a test that comes late in a run asks about other days than one that comes early."""
    return time.time() - hours * HOUR


def started(trial: str, hours_ago: float, attempt: int = 1) -> AttemptStarted:
    at = ago(hours_ago)
    return AttemptStarted(trial=TrialId(trial), attempt=attempt, worker="w", host="h", devices=["0"], at=at)


def ended(trial: str, hours_ago: float, attempt: int = 1, **usage: float) -> AttemptEnded:
    at = ago(hours_ago)
    return AttemptEnded(trial=TrialId(trial), attempt=attempt, end=AttemptEnd.COMPLETED, at=at, usage=usage)


def experiment(home: Path, name: str, *events: Event, gpus: float = 1, user: str = "ada", account: str = "") -> None:
    """Write an experiment that has ended into a folder; each entry's id has the time of its event."""
    definition = {"metric": "loss", "mode": "min", "max_failures": 0, "resources": {"gpus": gpus, "cpus": 1}}
    created = ExperimentCreated(name=name, definition=definition, at=BEGAN, account=account, user=user, host="lap")
    begun = DriverStarted(driver="d", version="0.2.0", at=BEGAN, cursor=START)
    last = getattr(events[-1], "at", BEGAN) if events else BEGAN
    over = ExperimentEnded(outcome="finished", reason="", at=last, cursor=START)
    (home / name).mkdir(parents=True)
    copy = JournalFile(home / name / JOURNAL_FILE)
    whole: list[Any] = [created, begun, *events, over]
    copy.begin([Entry(f"{each.at * 1000:.0f}-{number}", each.encode()) for number, each in enumerate(whole)])
    copy.close()


def used(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(group, ["usage", "--json", *arguments])
    assert (done.exit_code, done.stderr) == (0, "")
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def test_hours_are_those_within_the_time_and_energy_is_that_of_what_was_measured(mqtune_home: Path) -> None:
    experiment(
        mqtune_home, "big",
        started("0001", 100), ended("0001", 90, gpu_energy_j=10 * 3.6e6),
        # Half of it lies before.
        started("0002", 34), ended("0002", 14, gpu_energy_j=20 * 3.6e6),
        started("0003", 10), ended("0003", 9),
        started("0003", 8, 2), ended("0003", 6, 2, gpu_energy_j=2 * 3.6e6, gpu_slots=2.0),
        gpus=2,
    )  # fmt: skip

    (row,) = used("--since", "24h")

    assert (row["trials"], row["attempts"], row["experiments"]) == (2, 3, 1)
    assert row["slot_hours"] == pytest.approx(10 + 1 + 2, abs=0.01)
    assert row["gpu_hours"] == pytest.approx(26, abs=0.02)
    # Of the shared device the half is others'.
    assert row["energy_kwh"] == pytest.approx(10 + 1, abs=0.01)
    assert row["measured_gpu_hours"] == pytest.approx(24, abs=0.02)
    (whole,) = used("--since", "1w")
    assert whole["slot_hours"] == pytest.approx(10 + 20 + 1 + 2, abs=0.01)


def test_a_part_of_a_gpu_by_memory_is_its_share_of_the_hours_and_of_the_energy(mqtune_home: Path) -> None:
    offer, asked = Resources(gpu_memory_gb=80), Resources(gpu_memory_gb=20)
    experiment(
        mqtune_home, "packed",
        TrialStaged(trial=TrialId("0001"), attempt=1, config={}, at=ago(10), cursor=START, resources=asked),
        replace(started("0001", 9), queue=queue_name(offer)), ended("0001", 1, gpu_energy_j=4 * 3.6e6, gpu_slots=8.0),
    )  # fmt: skip

    (row,) = used("--since", "24h")

    assert row["gpu_hours"] == pytest.approx(8 / 4, abs=0.01)
    assert row["energy_kwh"] == pytest.approx(4 / 4, abs=0.01)


def test_the_time_in_which_data_waited_for_redis_is_shown_apart_as_the_part_within_the_time(mqtune_home: Path) -> None:
    experiment(
        mqtune_home, "waits",
        # Half of it lies before.
        started("0001", 34), ended("0001", 14, redis_wait_s=4 * HOUR),
        replace(started("0002", 9), task=0), replace(started("0002", 9), task=1), ended("0002", 7, redis_wait_s=HOUR),
        # A worker can't have waited for longer than the attempt took.
        started("0003", 6), ended("0003", 5, redis_wait_s=100 * HOUR),
        gpus=2,
    )  # fmt: skip
    experiment(mqtune_home, "older", started("0001", 3), ended("0001", 2))

    waits, older = used("--by", "experiment", "--since", "24h")

    assert waits["slot_hours"] == pytest.approx(10 + 4 + 1, abs=0.01)
    assert waits["waited_slot_hours"] == pytest.approx(2 + 2 + 1, abs=0.01)
    assert waits["waited_gpu_hours"] == pytest.approx(10, abs=0.02)
    assert older["waited_slot_hours"] == older["waited_gpu_hours"] == 0
    shown = CliRunner().invoke(group, ["usage", "--since", "24h"]).stdout
    lines = shown.splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["waited", "5.0", "5.0"]
    assert "among them 10.0 GPU-hours" in shown
    assert "waited" not in CliRunner().invoke(group, ["usage", "--since", "4h"]).stdout


def test_what_is_summed_up_is_by_person_by_account_or_by_experiment(mqtune_home: Path) -> None:
    hour = started("0001", 5), ended("0001", 4)
    experiment(mqtune_home, "one", *hour, account="team-a")
    experiment(mqtune_home, "two", *hour, account="team-a", gpus=4)
    experiment(mqtune_home, "three", *hour, user="eve", account="team-a", gpus=0.5)
    experiment(mqtune_home, "four", *hour, user="bob", gpus=0)
    experiment(mqtune_home, "idle")

    owners, teams, experiments = (used("--by", by) for by in ("owner", "team", "experiment"))

    assert [(each["owner"]["user"], each["experiments"], round(each["gpu_hours"], 2)) for each in owners] == [
        ("ada", 2, 5), ("eve", 1, 0.5), ("bob", 1, 0)
    ]  # fmt: skip
    assert [(each["account"], each["experiments"], round(each["gpu_hours"], 2)) for each in teams] == [
        ("team-a", 3, 5.5), ("", 1, 0)
    ]  # fmt: skip
    assert [each["experiment"] for each in experiments] == ["two", "one", "three", "four"]
    assert {each["energy_kwh"] for each in owners} == {None}
    shown = CliRunner().invoke(group, ["usage"]).stdout.splitlines()
    assert [line.split()[:2] for line in shown[:5]] == [
        ["owner", "experiments"], ["ada", "(team-a)"], ["eve", "(team-a)"], ["bob", "1"], ["all", "4"]
    ]  # fmt: skip


def test_what_can_not_be_read_is_named_and_the_rest_is_summed_up(mqtune_home: Path) -> None:
    experiment(mqtune_home, "sound", started("0001", 5), ended("0001", 4))
    experiment(mqtune_home, "broken", started("0001", 5))
    with (mqtune_home / "broken" / JOURNAL_FILE).open("r+b") as file:
        file.truncate(0)
    experiment(mqtune_home, "old", started("0001", 5), ended("0001", 4))
    os.utime(mqtune_home / "old" / JOURNAL_FILE, (ago(50),) * 2)

    done = CliRunner().invoke(group, ["usage", "--json", "--by", "experiment", "--since", "24h"])

    assert [each["experiment"] for each in json.loads(done.stdout)["rows"]] == ["sound"]
    assert "broken is not counted: " in done.stderr


@pytest.mark.parametrize("since", ["30", "1y", "soon", "2026-13-01"])
def test_a_time_that_is_none_is_refused_with_those_that_are(since: str) -> None:
    done = CliRunner().invoke(group, ["usage", "--since", since], env={"COLUMNS": "200"})

    assert done.exit_code == 2
    assert f"{since!r} is not a time; write 30d, 12h, 4w, or a date such as 2026-11-01" in done.output


def test_each_seat_of_a_gang_has_a_slot_with_its_gpus_and_energy_is_that_of_seat_0(mqtune_home: Path) -> None:
    first = started("0001", 3)
    seats = [replace(first, task=number, worker=f"w{number}") for number in (1, 2)]
    experiment(mqtune_home, "gang", first, *seats, ended("0001", 1, gpu_energy_j=3.6e6), gpus=2)

    (row,) = used()

    assert (row["trials"], row["attempts"]) == (1, 1)
    assert (row["slot_hours"], row["gpu_hours"], row["measured_gpu_hours"]) == pytest.approx((6, 12, 4), abs=0.01)
