"""Processes that run several trials: when they stay, the next trial in them, and fresh ones in their place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from one_slot import Slot

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.trainable import FRAME_END, TrainableSpec

CODE = """
import os
from pathlib import Path
import mqtune

def note(folder, what):
    with (Path(folder) / "log").open("a") as file:
        file.write(f"{what}\\n")

class Job(mqtune.Trainable):
    def setup(self, config):
        note(config["log"], "setup")
        self.total = 0
        self.resets = 0
        self.late = config.get("late")
        if self.late:
            import imported_late

    def step(self):
        config = self.config
        print(f"step of {self.trial_id}")
        row = {"total": self.total, "resets": self.resets, "pid": os.getpid()}
        row["folder"] = str(self.folder)
        self.total += config["lr"]
        row["done"] = self.training_iteration + 1 >= config["steps"]
        return row

    def reset_config(self, config):
        note(config["log"], f"reset {self.config['lr']} to {config['lr']} in {self.trial_id}")
        answer = config.get("answer", True)
        if answer == "report":
            mqtune.report({"too": "early"})
        if answer == "exit":
            os._exit(3)
        self.total = 0
        self.resets += 1
        return answer

    def cleanup(self):
        note(self.config["log"], f"cleanup of {self.trial_id}")
"""


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    job = TrainableSpec("Job", module="reused_code", kind="class")
    with contextlib.closing(Slot(tmp_path, "fork", job, CODE)) as slot:
        yield slot


def test_one_process_and_one_setup_serve_trial_after_trial_each_with_its_own_config_and_files(slot: Slot) -> None:
    trials = [slot.run(lr=lr, steps=2) for lr in (1, 2, 3)]

    assert len({one.pid for one in trials}) == 1
    assert slot.log() == ["setup", "reset 1 to 2 in t2", "reset 2 to 3 in t3"]
    assert [one.values("total") for one in trials] == [[0, 1], [0, 2], [0, 3]]
    for one in trials:
        assert one.values("training_iteration") == one.values("iterations_since_restore") == [1, 2]
        assert one.values("time_total_s") == one.values("time_since_restore_s")
    assert [one.output().splitlines() for one in trials] == [[f"step of t{n}"] * 2 for n in (1, 2, 3)]
    assert [one.values("folder")[0] for one in trials] == [str(slot.folder / f"t{n}" / "attempt") for n in (1, 2, 3)]
    assert [one.end()["end"] for one in trials] == ["completed"] * 3
    assert [one.status for one in trials] == [0, 0, 0]
    slot.end()
    assert slot.log()[-1] == "cleanup of t3"


@pytest.mark.parametrize(
    ("answer", "why"),
    [(False, "Job.reset_config returned False"), ("report", "before reset_config has returned"), ("exit", "")],
)
def test_a_fresh_process_takes_the_trial_if_the_old_one_is_not_reset(slot: Slot, answer: Any, why: str) -> None:
    first = slot.run()
    second = slot.run(answer=answer, lr=5, steps=2)
    third = slot.run()

    assert second.pids[0] == first.pid
    assert len(second.pids) == 2
    assert not psutil.pid_exists(first.pid)
    assert second.values("total") == [0, 5]
    assert second.end()["end"] == "completed"
    assert [kind for kind, _ in second.frames()].count(FRAME_END) == 1
    assert why in second.errors()
    assert third.pid == second.pid
    cleaned_up = [] if answer == "exit" else ["cleanup of t2"]
    assert slot.log()[2:] == [*cleaned_up, "setup", "reset 5 to 1 in t3"]


@pytest.mark.parametrize("late", [False, True])
def test_a_process_whose_code_has_changed_on_the_disk_is_not_used_again(slot: Slot, late: bool) -> None:
    first = slot.run(late=late)
    os.utime(slot.code / ("imported_late.py" if late else "reused_code.py"), ns=(1, 1))

    second = slot.run()

    assert second.pid != first.pid
    assert "its code has changed" in second.errors()
    assert slot.log() == ["setup", "cleanup of t1", "setup"]


def note(config: dict[str, Any]) -> None:
    mqtune.report({"loss": config["x"]})


class Fixed(mqtune.Trainable):
    def step(self) -> dict[str, Any]: ...


@pytest.mark.parametrize(
    ("trainable", "shown"),
    [(__file__, "a class with a reset_config"), (note, "a class with a reset_config"), (Fixed, "no reset_config")],
)
def test_reuse_is_refused_at_once_for_what_can_not_be_reset(trainable: Any, shown: str) -> None:
    with pytest.raises(ConfigurationError, match=shown):
        mqtune.Tuner(trainable, {"x": 1}, metric="loss", mode="min", process=mqtune.Process(reuse=True))
