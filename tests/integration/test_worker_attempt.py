"""One attempt on a worker, with real processes: paused, resumed, handed back, outlived, in lockstep."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import psutil
import pytest
from hypothesis import assume, given, settings, strategies as st
from losing import set_back, snapshot
from one_worker import Machine
from waiting import eventually, is_gone, lives

from mqtune.core.events import AttemptStarted, CheckpointSaved, Requested
from mqtune.core.timing import Timing
from mqtune.core.trial import UNDRIVEN, AttemptEnd, Intent, TrialId, attempt_and_number
from mqtune.journal import FENCED, GAP, MemoryJournal
from mqtune.worker import IMPORTER_IDLE_S, RunResult, revoke
from mqtune.worker.ports import AttemptHere, SlotHere, WorkerService

CODE = """
import os, signal, time
from pathlib import Path
import mqtune

def raises(config):
    raise ValueError("no luck")

def steady(config):
    for epoch in range(1, 4):
        mqtune.report({"loss": 1 / epoch})

def endless(config):
    epoch = 0
    while True:
        epoch += 1
        mqtune.report({"epoch": epoch})
        time.sleep(0.002)

def resumable(config):
    start = mqtune.get_checkpoint()
    epoch = 0 if start is None else start.data["epoch"]
    while True:
        epoch += 1
        mqtune.report({"epoch": epoch}, checkpoint={"epoch": epoch})
        time.sleep(0.002)

def waits_for(config):
    mqtune.report({"loss": 1})
    while not os.path.exists(config["file"]):
        time.sleep(0.01)

def deaf(config):
    mqtune.report({"loss": 1})
    while True:
        try:
            time.sleep(60)
        except mqtune.StopTrial:
            pass

def catches_all(config):
    while True:
        try:
            time.sleep(0.01)
            mqtune.report({"loss": 1})
        except:
            pass

def reports_from_a_fork(config):
    import multiprocessing
    child = multiprocessing.get_context("fork").Process(target=mqtune.report, args=({"loss": 1},))
    child.start()
    child.join()
    if config.get("fails"):
        raise ValueError("the child has failed")

def reports_from_a_program(config):
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "import mqtune; mqtune.report({'loss': 1})"])
    if config.get("also"):
        mqtune.report({"loss": 2})

def keeps_files(config):
    if config["who"] != "empty":
        Path("model.txt").write_text(config["who"])
    # The folder that others see is a link to the place of the attempt, until that has ended.
    folder = mqtune.get_context().folder
    mqtune.report({"here": os.getcwd(), "real_folder": os.path.realpath(folder), "folder": str(folder)})
    if config["who"] == "bad":
        raise ValueError(Path("worker_code.py").read_text()[:10])

def closes_everything(config):
    mqtune.report({"loss": 1})
    os.closerange(3, 256)
    with open(config["file"], "wb", buffering=0) as own:
        others = [open(config["file"], "ab", buffering=0) for _ in range(20)]
        for epoch in range(5):
            try:
                mqtune.report({"loss": epoch})
            except Exception as error:
                print("refused:", error, flush=True)

class Once(mqtune.Trainable):
    def step(self):
        return {"pid": os.getpid(), "place": os.environ.get("PLACE", ""), "done": True}
    def reset_config(self, config):
        return True

class Steps(mqtune.Trainable):
    def setup(self, config):
        self.epoch = 0
    def step(self):
        self.epoch += 1
        if self.epoch > 1 and "mark" in self.config:
            Path(self.config["mark"]).touch()
        time.sleep(0.02 if self.epoch == 1 else self.config.get("later_steps_s", 0.02))
        return {"epoch": self.epoch}
    def save_checkpoint(self, folder):
        return {"epoch": self.epoch}
    def load_checkpoint(self, checkpoint):
        self.epoch = checkpoint.data["epoch"]
"""


@pytest.fixture
def timing() -> Timing:
    return Timing(lease_s=60.0)


@pytest.fixture
def machine(tmp_path: Path, timing: Timing) -> Iterator[Machine]:
    with contextlib.closing(Machine(tmp_path, CODE, timing)) as machine:
        yield machine


def test_a_revoke_that_reaches_several_workers_is_one_request_and_what_waits_does_not_begin(machine: Machine) -> None:
    machine.stage()
    for _ in range(3):
        revoke(machine.parts.name, machine.parts.clock, MemoryJournal(machine.server, "e"), TrialId("0001"), 1)

    (request,) = (event for event in machine.events() if isinstance(event, Requested))
    assert (request.action, request.trial) == ("stop", "0001")
    assert machine.attempt(1).ended_unclaimed() == "not run: revoked"


def test_while_it_waits_for_an_import_an_attempt_is_held_and_the_driver_knows_since_when(
    machine: Machine, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    slow = f"import time, pathlib\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
    (machine.code_root / "worker_code.py").write_text(slow + CODE)

    one = machine.start("steady")
    eventually(lambda: [each.worker for each in machine.driver.unclaimed()] == ["w1@here"])

    (held,) = machine.driver.unclaimed()
    assert held[:3] == ("0001", 1, "w1@here")
    assert held.importing_s is not None
    gate.touch()
    assert one.ended().end is AttemptEnd.COMPLETED


@pytest.mark.parametrize("which", ["importer", "zygote"])
def test_a_process_that_is_killed_while_no_trial_uses_it_is_no_zombie_for_long(machine: Machine, which: str) -> None:
    machine.start("steady").ended()
    (zygote,), (importer,) = machine.slot.zygotes.all, machine.parts.slots.importers.all
    process = psutil.Process(zygote.pid if which == "zygote" else importer.pid)

    process.kill()

    eventually(lambda: machine.parts.slots.trim(IMPORTER_IDLE_S) or not process.is_running())
    assert machine.start("steady", trial="0002").ended().end is AttemptEnd.COMPLETED


def test_a_second_process_of_an_attempt_saves_dicts_of_its_own(machine: Machine) -> None:
    number = machine.stage()
    before = snapshot(machine.server)
    first = machine.attempt(number, "resumable").has_reported(2)
    old = [report.checkpoint for report in first.reports]
    # The server forgets the claim, so the attempt is staged, and its number is claimed once more.
    set_back(machine.server, before)
    eventually(lambda: first.outcome)

    second = machine.attempt(number, "resumable").has_reported(2).intend(Intent.PAUSE)

    assert second.ended().end is AttemptEnd.PAUSED
    saved = [report.checkpoint for report in second.reports]
    assert [attempt_and_number(name) for name in saved[:2]] == [attempt_and_number(name) for name in old[:2]]
    assert not {*saved} & {*old}
    third = machine.start("resumable", checkpoint=saved[-1]).has_reported(1).intend(Intent.STOP)
    third.ended()
    assert third.reports[0].metrics["epoch"] == second.reports[-1].metrics["epoch"] + 1


@pytest.mark.parametrize("timing", [Timing(lease_s=60.0, stop_grace_s=0.01)])
@pytest.mark.parametrize(("grace_s", "step_s"), [(60.0, 0.5), (0.1, 30.0)])
def test_a_step_that_is_long_is_ended_and_saved_if_the_workers_grace_lasts(
    machine: Machine, tmp_path: Path, grace_s: float, step_s: float
) -> None:
    machine.grace_s = grace_s
    mark = tmp_path / "mark"
    one = machine.start("Steps", {"later_steps_s": step_s, "mark": str(mark)}, kind="class").has_reported(1)
    eventually(mark.exists)

    one.run.requeue("its worker was drained")

    assert one.ended().end is AttemptEnd.HANDED_BACK
    assert len(one.of(CheckpointSaved)) == (grace_s > step_s)


def test_any_text_in_place_of_orders_leaves_the_trial_running_and_raises_nothing(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    one = machine.start("endless").has_reported(1)
    for word in ("no-such-intent", "save:x", "save:-1", "go:99999999999999999999999", "save:" + "9" * 400):
        one.run.on_answer(word)
        assert f"got {word!r:.100}, which this version of mqtune does not understand" in caplog.text
    ends = {*(intent.value for intent in Intent), UNDRIVEN, FENCED, GAP}
    numbers = st.integers().map(str) | st.integers(0, 6_000).map("9".__mul__) | st.floats().map(str)
    words = st.sampled_from(["save", "go", "wait", ""]) | numbers | st.text(max_size=9)
    orders = st.lists(words, min_size=1, max_size=3).map(":".join)

    @settings(max_examples=3 * settings.default.max_examples, database=None)
    @given(st.lists(orders | st.text(max_size=20), max_size=4).map(" ".join))
    def write(answer: str) -> None:
        assume(not ends & {*answer.split()})
        one.run.on_answer(answer)

    write()

    assert not one.run.is_ending
    assert one.intend(Intent.STOP).ended().end is AttemptEnd.STOPPED


def test_a_trial_that_catches_every_stop_ends_at_a_report_and_says_why(machine: Machine) -> None:
    why = "did not end when it was told to pause: a bare `except:` or `except BaseException:` has caught StopTrial; write "
    why += "`except Exception:`"
    one = machine.start("catches_all").has_reported(3)
    began = time.monotonic()

    ended = one.intend(Intent.PAUSE).ended()

    assert time.monotonic() - began < Timing().stop_grace_s - 3, "it had the slot until its worker lost patience"
    assert (ended.end, ended.signal, ended.error) == (AttemptEnd.PAUSED, signal.SIGTERM, why)
    assert ended.stderr_tail == f"{why}\n"


NO_CHILD = "report: this is a child process of the trial, which can't report or save: pass the values to the trial's own process, such "
NO_CHILD += "as through a multiprocessing.Queue or a file, and report them there"


@pytest.mark.parametrize(
    ("how", "config", "error"),
    [
        ("reports_from_a_fork", {}, f"{NO_CHILD}$"),
        ("reports_from_a_fork", {"fails": True}, f"{NO_CHILD}(?s:.*)ValueError: the child has failed\n*$"),
        # It reports itself, so it has no error.
        ("reports_from_a_program", {"also": True}, "$"),
    ],
)
def test_a_trial_without_reports_of_its_own_says_that_a_child_process_has_tried_to_report(
    machine: Machine, how: str, config: dict[str, Any], error: str
) -> None:
    one = machine.start(how, config)
    ended = one.ended()

    fails = "fails" in config
    assert (ended.end, ended.error_type) == ((AttemptEnd.FAILED, "ValueError") if fails else (AttemptEnd.COMPLETED, ""))
    assert [report.metrics["loss"] for report in one.reports] == [2] * ("also" in config)
    assert re.match(error, ended.error)
    assert fails or f"RuntimeError: {NO_CHILD}" in ended.stderr_tail


@pytest.mark.parametrize("timing", [Timing(lease_s=60.0, terminate_grace_s=0.1)])
def test_one_that_will_not_hear_is_killed_when_the_grace_is_over(machine: Machine, timing: Timing) -> None:
    machine.grace_s = 0.1

    # A pause has time. A closing worker has no time.
    paused = machine.start("deaf").has_reported(1).intend(Intent.PAUSE)
    paused.run.requeue("its worker was shut down")
    assert paused.ended().end is AttemptEnd.PAUSED
    handed_back = machine.start("deaf", trial="0002").has_reported(1)
    handed_back.run.requeue("its worker was shut down")
    assert handed_back.ended().end is AttemptEnd.HANDED_BACK
    machine.parts = replace(machine.parts, timing=replace(timing, pause_grace_s=0.1))
    assert machine.start("deaf", trial="0003").has_reported(1).intend(Intent.PAUSE).ended().end is AttemptEnd.PAUSED


@pytest.mark.parametrize("broken", ["definition", "code root", "checkpoint"])
def test_whatever_is_wrong_before_a_trial_runs_ends_the_attempt_with_the_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    definition: dict[str, Any] = {}
    match broken:
        case "definition":
            definition["trainable"] = {"script": 7}
        case "code root":
            machine.code_root.rename(machine.code_root.with_name("gone"))
        case "checkpoint":
            monkeypatch.setattr(MemoryJournal, "checkpoint", Mock(side_effect=RuntimeError("out of luck")))
            definition["checkpoint"] = "m-0001-1-1"

    ended = machine.start("steady", **definition).ended()

    assert (ended.end, ended.pid) == (AttemptEnd.HANDED_BACK, 0)
    assert ended.error_type
    assert "w1@here" in ended.error
    monkeypatch.undo()
    if broken == "code root":
        machine.code_root.with_name("gone").rename(machine.code_root)
    assert machine.start("steady", trial="0002").ended().end is AttemptEnd.COMPLETED


def test_a_worker_that_can_start_nothing_takes_nothing_for_a_while_until_it_can(machine: Machine) -> None:
    for name in ("raises", "no_such"):
        for trial in ("0001", "0002", "0003"):
            assert machine.back_off.allows is None
            machine.start(name, trial=trial).ended()

    assert machine.back_off.allows == 0
    machine.start("steady").ended()
    assert machine.back_off.allows is None


#: Nobody waits long for a frozen zygote, nor for the steps of the stop ladder; a zygote at work takes less to start a trial.
FROZEN: Final = Timing(zygote_silence_s=0.3, zygote_start_s=2.0, zygote_exchange_s=2.0, zygote_close_s=1.0)
IMPATIENT: Final = pytest.mark.parametrize("timing", [replace(FROZEN, stop_grace_s=0.3, terminate_grace_s=0.3)])


@contextlib.contextmanager
def frozen(machine: Machine) -> Iterator[psutil.Process]:
    """The slot's zygote is frozen; it is gone afterwards."""
    process = psutil.Process(machine.slot.zygotes.all[-1].pid)
    process.suspend()
    yield process
    assert not lives(process)


@IMPATIENT
@pytest.mark.parametrize("trainable", ["endless", "deaf"])
def test_a_trial_under_a_frozen_zygote_is_ended_when_that_is_wanted(machine: Machine, trainable: str) -> None:
    one = machine.start(trainable).has_reported(1)

    with frozen(machine):
        ended = one.intend(Intent.STOP).ended()

    assert ended.end is AttemptEnd.STOPPED
    assert is_gone(ended.pid)


@IMPATIENT
def test_a_trial_that_ends_under_a_frozen_zygote_has_ended_as_it_says(machine: Machine, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    one = machine.start("waits_for", {"file": str(go_on)}).has_reported(1)

    with frozen(machine):
        go_on.touch()
        ended = one.ended()

    assert (ended.end, ended.error) == (AttemptEnd.COMPLETED, "")
    assert machine.start("steady", trial="0002").ended().end is AttemptEnd.COMPLETED, "the slot serves on"


@IMPATIENT
@pytest.mark.parametrize("text", ["", "x" * 2**22], ids=["small", "larger than a channel holds"])
def test_a_trial_that_a_frozen_zygote_does_not_start_is_started_by_a_fresh_one(machine: Machine, text: str) -> None:
    machine.start("steady").ended()

    with frozen(machine) as zygote:
        two = machine.start("steady", {"text": text}, trial="0002")
        eventually(lambda: not lives(zygote))

    assert two.ended().end is AttemptEnd.COMPLETED
    assert len(two.reports) == 3


def test_a_trial_whose_zygote_dies_with_the_trial_before_is_started_by_a_fresh_one(machine: Machine) -> None:
    one = machine.start("waits_for", {"file": str(machine.code_root / "nothing")}).has_reported(1)
    two = machine.start("waits_for", {"file": str(machine.code_root)}, trial="0002")
    eventually(lambda: two.of(AttemptStarted))

    os.kill(machine.slot.zygotes.all[-1].pid, signal.SIGKILL)

    assert (one.ended().end, one.ended().error_type) == (AttemptEnd.LOST, "ZygoteDied")
    assert two.ended().end is AttemptEnd.COMPLETED
    assert len(two.reports) == 1


@pytest.mark.parametrize(("keep", "kept"), [("always", {"bad", "well"}), ("failed", {"bad"}), ("never", set())])
def test_a_folder_of_its_own_is_kept_by_the_rule(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, keep: str, kept: set[str]
) -> None:
    monkeypatch.chdir(machine.code_root)
    settings = {"working_dir": "trial", "keep_working_dir": keep}
    folders = {}
    # One in which nothing was written is never kept.
    for trial in ("bad", "well", "empty"):
        one = machine.start("keeps_files", {"who": trial}, trial=trial, **settings)
        ended, (started,), metrics = one.ended(), one.of(AttemptStarted), one.reports[0].metrics
        assert (metrics["folder"], metrics["real_folder"]) == (started.working_dir, metrics["here"])
        assert (CODE[:10] in ended.error) == (trial == "bad"), "it reads the files of the code"
        assert not Path(metrics["here"]).exists()
        folders[trial] = Path(started.working_dir)

    assert {trial for trial, folder in folders.items() if folder.exists()} == kept
    assert all((folders[trial] / "model.txt").read_text() == trial for trial in kept)
    assert not list(machine.log_root.glob(".scratch/*/*"))


class Asked(WorkerService):
    """Has variables for trials, and a reason why a process may not run another one."""

    def __init__(self) -> None:
        self.reason = ""

    def variables(self, run: AttemptHere) -> dict[str, str]:
        return {"PLACE": f"trial {run.claim.trial}"}

    def retires(self, slot: SlotHere) -> str:
        return self.reason


def test_a_service_has_variables_for_a_trial_and_says_which_process_runs_no_other_one(
    tmp_path: Path, timing: Timing
) -> None:
    service = Asked()
    reused = {"kind": "class", "reuse": True}
    with contextlib.closing(Machine(tmp_path, CODE, timing, service)) as machine:
        first = machine.start("Once", trial="0001", **reused)
        assert first.ended().retired == ""
        service.reason = "it has left 3 GB"
        second = machine.start("Once", trial="0002", **reused)
        assert second.ended().retired == "it has left 3 GB"
        third = machine.start("Once", trial="0003", **reused)
        third.ended()

        (pid, other, fresh) = (one.reports[0].metrics["pid"] for one in (first, second, third))
        assert (pid == other, fresh == pid) == (True, False)
        assert first.reports[0].metrics["place"] == "trial 0001"


def test_a_trial_that_has_closed_its_pipe_is_told_so_and_writes_nothing_elsewhere(machine: Machine, tmp_path: Path):
    one = machine.start("closes_everything", {"file": str(tmp_path / "own")})

    ended = one.ended()

    assert [report.metrics["loss"] for report in one.reports] == [1]
    assert (tmp_path / "own").read_bytes() == b""
    assert ended.stdout_tail.count("refused: ") == 5
    assert "os.closerange" in ended.stdout_tail
    assert (ended.end, ended.error_type) == (AttemptEnd.FAILED, "PipeClosed")
    assert "os.closerange" in ended.error


class ChecksAfterFailures(WorkerService):
    """Checks a slot before an attempt, and hears how the one before has ended."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def admit(self, slot: SlotHere) -> bool:
        self.calls.append("checked")
        return True

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        self.calls.append(f"{run.claim.trial} {result.end and result.end.value}")


def test_a_service_hears_how_an_attempt_ended_before_it_checks_the_slot_for_the_next(tmp_path: Path) -> None:
    service, stop = ChecksAfterFailures(), tmp_path / "stop"
    with contextlib.closing(Machine(tmp_path, CODE, Timing(), service)) as machine:
        first = machine.start("waits_for", {"file": str(stop)}).has_reported(1)
        second = machine.start("raises", trial="0002")
        eventually(lambda: service.calls == ["checked"])
        stop.touch()
        first.finished()
        second.finished()
        machine.start("steady", trial="0003").finished()

    assert service.calls == ["checked", "0001 completed", "checked", "0002 failed", "checked", "0003 completed"]
