"""Processes that are used for several trials: which stay, what the next trial finds, and who takes it if one will not."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from one_slot import Slot
from waiting import eventually, lives

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.trainable import FRAME_END, STOP, STOP_SIGNAL, TrainableSpec

CODE = """
import os, subprocess, threading, time
from pathlib import Path
import mqtune

def note(folder, what):
    with (Path(folder) / "log").open("a") as file:
        file.write(f"{what}\\n")

def wait_for(path):
    deadline = time.monotonic() + 20
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.002)

class Job(mqtune.Trainable):
    def setup(self, config):
        note(config["log"], "setup")
        self.total = 0
        self.resets = 0
        self.late = config.get("late")
        if self.late:
            import imported_late
        if config.get("fails_in_setup"):
            raise ValueError("no setup")
        if config.get("daemon"):
            self.go = threading.Event()
            self.said = None
            threading.Thread(target=self.report_late, daemon=True).start()

    def report_late(self):
        self.go.wait()
        try:
            mqtune.report({"stranger": 1})
        except RuntimeError as error:
            self.said = str(error)

    def step(self):
        config = self.config
        print(f"step of {self.trial_id}")
        row = {"total": self.total, "resets": self.resets, "pid": os.getpid()}
        row["folder"] = str(self.folder)
        self.total += config["lr"]
        do = config.get("do")
        if "leaves" in config:
            Path("step").write_text(self.trial_id)
        if do == "fail":
            raise ValueError("no luck")
        if do == "sleep":
            mqtune.report({"in": "step"})
            time.sleep(30)
        if do == "swallow":
            mqtune.report({"in": "step"})
            try:
                time.sleep(30)
            except mqtune.StopTrial:
                pass
        if do == "leave":
            self.child = subprocess.Popen(["sleep", "60"])
        if do == "ask stranger":
            self.go.set()
            deadline = time.monotonic() + 10
            while self.said is None and time.monotonic() < deadline:
                time.sleep(0.001)
            row["said"] = self.said
        row["done"] = self.training_iteration + 1 >= config["steps"]
        return row

    def reset_config(self, config):
        note(config["log"], f"reset {self.config['lr']} to {config['lr']} in {self.trial_id}")
        answer = config.get("answer", True)
        if answer == "raise":
            raise KeyError("nothing of it")
        if answer == "report":
            mqtune.report({"too": "early"})
        if answer == "save":
            mqtune.save_checkpoint({"too": "early"})
        if answer == "exit":
            os._exit(3)
        if "until" in config:
            note(config["log"], "waits")
            wait_for(config["until"])
        if "leaves" in config:
            Path("reset").touch()
        self.total = 0
        self.resets += 1
        return answer

    def cleanup(self):
        note(self.config["log"], f"cleanup of {self.trial_id}")
        if self.config.get("fails_in_cleanup"):
            raise ValueError("no cleanup")
        if self.config.get("hangs_in_cleanup"):
            time.sleep(30)
"""


JOB = TrainableSpec("Job", module="reused_code", kind="class")


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    with contextlib.closing(Slot(tmp_path, "fork", JOB, CODE)) as slot:
        yield slot


@pytest.fixture(params=["fork", "spawn"])
def each_slot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Slot]:
    """A slot whose zygote forks, and one whose zygote starts interpreters."""
    with contextlib.closing(Slot(tmp_path, request.param, JOB, CODE)) as slot:
        yield slot


# What stays, and what the next trial finds.


def test_one_process_and_one_setup_serve_trial_after_trial_each_with_its_own_config_and_files(each_slot: Slot) -> None:
    trials = [each_slot.run(lr=lr, steps=2) for lr in (1, 2, 3)]

    assert len({one.pid for one in trials}) == 1
    assert each_slot.log() == ["setup", "reset 1 to 2 in t2", "reset 2 to 3 in t3"]
    assert [one.values("total") for one in trials] == [[0, 1], [0, 2], [0, 3]]
    for one in trials:
        assert one.values("training_iteration") == one.values("iterations_since_restore") == [1, 2]
        assert one.values("time_total_s") == one.values("time_since_restore_s")
    assert [one.output().splitlines() for one in trials] == [[f"step of t{n}"] * 2 for n in (1, 2, 3)]
    assert [one.values("folder")[0] for one in trials] == [
        str(each_slot.folder / f"t{n}" / "attempt") for n in (1, 2, 3)
    ]
    assert [one.end()["end"] for one in trials] == ["completed"] * 3
    assert [one.status for one in trials] == [0, 0, 0]
    each_slot.end()
    assert each_slot.log()[-1] == "cleanup of t3"


# What does not stay.


@pytest.mark.parametrize("do", ["sleep", "swallow"])
def test_a_process_that_was_told_in_the_middle_of_a_step_does_not_stay(slot: Slot, do: str) -> None:
    first = slot.start(do=do)
    eventually(first.reports)
    first.tell(STOP)
    first.ended()

    second = slot.run()

    assert first.end()["end"] == "stopped"
    assert first.pid != second.pid
    assert second.pids == [second.pid]
    assert slot.log() == ["setup", "cleanup of t1", "setup"]


def test_a_thread_that_an_earlier_trial_left_can_not_report_for_a_later_one(slot: Slot) -> None:
    slot.run(daemon=True)
    one = slot.run(do="ask stranger")

    assert "earlier trial" in one.values("said")[0]
    assert len(one.reports()) == 1


# Who takes the trial if the process will not.


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (False, "Job.reset_config returned False"),
        (None, "Job.reset_config returned None"),
        (1, "Job.reset_config returned 1"),
        ("raise", "KeyError"),
        ("report", "before reset_config has returned"),
        ("save", "before reset_config has returned"),
        ("exit", ""),
    ],
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
def test_a_process_whose_code_has_changed_on_the_disk_is_not_used_again(each_slot: Slot, late: bool) -> None:
    first = each_slot.run(late=late)
    os.utime(each_slot.code / ("imported_late.py" if late else "reused_code.py"), ns=(1, 1))

    second = each_slot.run()

    assert second.pid != first.pid
    assert "its code has changed" in second.errors()
    assert each_slot.log() == ["setup", "cleanup of t1", "setup"]


# Signals.


def test_a_stop_waits_for_the_reset_and_then_ends_the_trial_before_its_first_step(slot: Slot) -> None:
    first = slot.run()
    until = slot.folder / "until"
    second = slot.start(until=str(until))
    eventually(lambda: slot.log()[-1] == "waits")
    second.tell(STOP)
    until.touch()
    second.ended()

    assert second.pid == first.pid
    assert second.end()["end"] == "stopped"
    assert second.reports() == []


def test_a_stop_during_a_reset_that_is_refused_reaches_the_fresh_process(each_slot: Slot) -> None:
    each_slot.run()
    until = each_slot.folder / "until"
    one = each_slot.start(until=str(until), answer=False)
    eventually(lambda: each_slot.log()[-1] == "waits")
    one.tell(STOP)
    until.touch()
    one.passed_on()
    one.zygote.tell(one.pid)
    one.ended()

    assert one.end()["end"] == "stopped"
    assert one.reports() == []


@pytest.mark.parametrize("rung", ["terminate", "kill"])
def test_a_process_that_is_killed_in_its_reset_takes_the_trial_along(slot: Slot, rung: str) -> None:
    slot.run()
    one = slot.start(until="never")
    eventually(lambda: slot.log()[-1] == "waits")
    getattr(slot.zygote, rung)(one.pid)

    one.ended()

    assert one.status is not None
    assert os.WIFSIGNALED(one.status)
    assert one.pids == [one.pid]
    assert slot.run().end()["end"] == "completed"


def test_signals_that_come_after_the_end_do_not_touch_the_process_that_waits(slot: Slot) -> None:
    first = slot.run()
    for late in (slot.zygote.tell, slot.zygote.terminate, slot.zygote.kill):
        late(first.pid)
    os.kill(first.pid, STOP_SIGNAL)

    second = slot.run()

    assert second.pid == first.pid
    assert second.end()["end"] == "completed"


# The end of a process that waits.


def test_a_process_that_waits_goes_with_its_zygote_even_if_its_cleanup_hangs(slot: Slot) -> None:
    waiting = psutil.Process(slot.run(hangs_in_cleanup=True).pid)
    began = time.monotonic()

    slot.end()

    assert not lives(waiting)
    assert time.monotonic() - began < 5
    assert slot.log()[-1] == "cleanup of t1"


def test_an_error_in_a_late_cleanup_is_shown_and_one_in_that_of_a_process_that_does_not_stay_fails_its_trial(
    slot: Slot,
) -> None:
    one = slot.run(do="leave", fails_in_cleanup=True)
    assert (one.end()["end"], one.end()["error_type"]) == ("failed", "ValueError")

    one = slot.run(fails_in_cleanup=True)
    slot.end()

    assert one.end()["end"] == "completed"
    assert "ValueError: no cleanup" in one.errors()


# What can be asked for.


def note(config: dict[str, Any]) -> None:
    mqtune.report({"loss": config["x"]})


class Fixed(mqtune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"loss": 1.0}


@pytest.mark.parametrize(
    ("trainable", "shown"),
    [(__file__, "a class with a reset_config"), (note, "a class with a reset_config"), (Fixed, "no reset_config")],
)
def test_reuse_is_refused_at_once_for_what_can_not_be_reset(trainable: Any, shown: str) -> None:
    with pytest.raises(ConfigurationError, match=shown):
        mqtune.Tuner(trainable, {"x": 1}, metric="loss", mode="min", process=mqtune.Process(reuse=True))


def test_each_trial_of_a_process_runs_in_its_own_folder_from_its_reset_on(tmp_path: Path) -> None:
    slot = Slot(tmp_path / "slot", "fork", JOB, CODE, home=tmp_path, work_root=tmp_path / "logs" / "exp" / ".work")
    folders = [tmp_path / "own" / str(number) for number in (1, 2)]
    with contextlib.closing(slot):
        for folder in folders:
            one = slot.start(message={"working_dir": str(folder)}, leaves="a file").ended()
            assert one.values("folder") == [str(folder)]

    assert len({one.pid for one in slot.attempts}) == 1
    assert [(folder / "step").read_text() for folder in folders] == ["t1", "t2"]
    assert not (folders[0] / "reset").exists()
    assert (folders[1] / "reset").exists()
