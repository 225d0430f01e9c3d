"""A death by SIGKILL is told from one by the system, which counts whom it kills when memory runs out."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mqtune.core.trial import AttemptEnd, Intent
from mqtune.worker import AttemptOutcome, MemoryKills, find_counter, processes as memory_kills


class Counter:
    """The group's counter, as the kernel writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count(0)

    def count(self, kills: int) -> None:
        self.path.write_text(f"low 0\nhigh 7\noom 9\noom_kill {kills}\noom_group_kill 0\n")


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    return Counter(tmp_path / "memory.events")


def test_a_kill_shows_until_two_looks_later(counter: Counter) -> None:
    counter.count(5)
    kills = MemoryKills(counter.path)
    assert not kills.happened(), "those before the worker are none of its own"

    counter.count(6)
    assert kills.happened()
    kills.look()
    assert kills.happened()
    assert kills.happened(), "another that died in the same seconds"
    kills.look()

    assert not kills.happened()


@pytest.mark.parametrize("text", [None, "", "oom 3\n", "oom_kill many\n"])
def test_without_a_counter_nothing_is_known(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "memory.events"
    if text is not None:
        path.write_text(text)
    kills = MemoryKills(path)
    kills.look()

    assert not kills.happened()
    assert not MemoryKills(None).happened()


def test_the_counter_of_the_workers_own_group_comes_before_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_kills, "_CGROUPS", tmp_path)
    machine = Counter(tmp_path / "vmstat")
    monkeypatch.setattr(memory_kills, "_OF_THE_MACHINE", machine.path)
    assert find_counter() == machine.path

    group = Counter(tmp_path / "memory.events")
    assert find_counter() == group.path


def evidence(status: int, *, ran_out: bool, **more: object) -> AttemptOutcome:
    return AttemptOutcome(intent=Intent.RUN, status=status, memory_ran_out=lambda: ran_out, **more)  # type: ignore[arg-type]


def test_a_trial_that_the_system_killed_says_so() -> None:
    said = {"end": "failed", "heard": "", "error_type": "Killed", "error": "script a.py was killed by SIGKILL"}

    end, kind, error = evidence(signal.SIGKILL, ran_out=True).ending()
    _, of_script, told = evidence((128 + signal.SIGKILL) << 8, ran_out=True, said=said).ending()

    assert (end, kind, of_script) == (AttemptEnd.FAILED, "OutOfMemory", "OutOfMemory")
    assert error.splitlines()[0] == "the trial's process was killed by SIGKILL"
    assert "memory ran out" in error.splitlines()[-1]
    assert told.startswith("script a.py was killed by SIGKILL\n")


@pytest.mark.parametrize(
    ("status", "ran_out", "forced", "kind"),
    [
        (int(signal.SIGKILL), False, False, "Killed"),
        (int(signal.SIGKILL), True, True, "Killed"),
        (int(signal.SIGSEGV), True, False, "Killed"),
        (1 << 8, True, False, "Exited"),
    ],
    ids=["by somebody", "by its worker", "by another signal", "by itself"],
)
def test_other_ends_are_told_apart(status: int, ran_out: bool, forced: bool, kind: str) -> None:
    assert evidence(status, ran_out=ran_out, forced=forced).ending().error_type == kind
