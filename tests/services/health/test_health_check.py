"""The health check closes a slot's devices while it fails, runs seldom and blocks nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest
from impaired import nothing_impaired, reasons
from waiting import eventually

from mqtune.core.timing import Timing
from mqtune.core.trial import AttemptEnd
from mqtune.services.health.check import HealthCheck
from mqtune.worker import RunResult
from mqtune.worker.ports import AttemptHere


@pytest.fixture
def check() -> Iterator[Callable[..., HealthCheck]]:
    """Returns the check of a worker that runs this command."""
    with contextlib.ExitStack() as made:

        def make(command: str, timing: Timing = Timing()) -> HealthCheck:
            check = HealthCheck(command, nothing_impaired(), timing)
            made.callback(check.impairments.close)
            made.callback(check.drain)
            return check

        yield make


class Slot(NamedTuple):
    """A slot with one device of the same number."""

    index: int

    @property
    def places(self) -> tuple[str, ...]:
        return (str(self.index),)

    @property
    def environment(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": str(self.index)}


def passes(check: HealthCheck, slot: int = 0) -> bool:
    return check.admit(Slot(slot))


def test_a_slot_is_checked_again_after_a_failure_or_a_while(check: Callable[..., HealthCheck], tmp_path: Path) -> None:
    done = tmp_path / "done"
    checked = check(f"echo $CUDA_VISIBLE_DEVICES >> {done}")

    assert [passes(checked, slot) for slot in (0, 1, 0, 1)] == [True] * 4
    checked.ended(cast("AttemptHere", SimpleNamespace(slot=1)), RunResult(AttemptEnd.FAILED, "it failed"))
    assert [passes(checked, slot) for slot in (0, 1)] == [True] * 2
    assert done.read_text().split() == ["0", "1", "1"]

    short_lived = check(f"echo $CUDA_VISIBLE_DEVICES >> {done}", Timing(sound_s=-1.0))
    assert [passes(short_lived, 0) for _ in range(2)] == [True] * 2
    assert done.read_text().split() == ["0", "1", "1", "0", "0"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("echo fine; echo 'row remap failed' >&2; exit 3", "row remap failed"),
        ("exit 3", "it exited with code 3"),
        ("printf '\\033[31mred'; exit 1", "\\x1b[31mred"),
        ("no-such-command-here", "not found"),
        ("sleep 600", "it took longer than 0.3 s"),
    ],
)
def test_a_failing_or_hanging_check_closes_devices(check: Callable[..., HealthCheck], command: str, says: str) -> None:
    checked = check(command, Timing(health_check_s=0.3) if command.startswith("sleep") else Timing())

    assert not passes(checked)

    note = reasons(checked.impairments)
    assert note.startswith("device 0 is quarantined, its health check failed: ")
    assert note.endswith(says)


def test_a_worker_that_ends_waits_for_no_check(check: Callable[[str], HealthCheck], tmp_path: Path) -> None:
    began = tmp_path / "began"
    checked = check(f"touch {began}; sleep 600")
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(passes(checked)), daemon=True)
    waiting.start()
    eventually(began.exists)

    checked.impairments.close()
    checked.drain()
    waiting.join(10)

    assert answers == [False]
    assert not passes(checked, 1)
    assert reasons(checked.impairments) == ""
