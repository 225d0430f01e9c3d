"""One attempt on a worker, with real processes: paused, resumed, handed back, outlived, in lockstep; and what is journaled."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import psutil
import pytest
from hypothesis import assume, given, settings, strategies as st
from impaired import nothing_impaired, quarantined
from losing import set_back, snapshot
from one_worker import Machine
from waiting import eventually, is_gone, lives

from mqtune.checkpoints import open_store
from mqtune.core.errors import BrokerFull
from mqtune.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Requested,
)
from mqtune.core.timing import Timing
from mqtune.core.trial import (
    UNDRIVEN,
    WORKER_ERROR,
    AttemptEnd,
    Intent,
    TrialId,
    attempt_and_number,
)
from mqtune.journal import FENCED, GAP, Answer, Claim, EndedBy, MemoryJournal, Segment
from mqtune.trainable import TrainableSpec, fingerprints, read_code
from mqtune.worker import (
    FAILED_STARTS,
    IMPORTER_IDLE_S,
    ControlPipe,
    QuickFailures,
    Stream,
    Uplink,
    ZygoteHandle,
    attempt as attempt_module,
    revoke,
)

CODE = """
import os, signal, time
from pathlib import Path
import msgpack
import mqtune

def raises(config):
    raise ValueError("no luck")

print("imported here", flush=True)

def goes_slowly(config):
    try:
        endless(config)
    finally:
        time.sleep(0.5)
        with open(config["log"], "a") as file:
            file.write("the first goes\\n")

def notes_start(config):
    with open(config["log"], "a") as file:
        file.write("the second runs\\n")
    mqtune.report({"loss": 1})

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

def files(config):
    start = mqtune.get_checkpoint()
    epoch = 0 if start is None else int((start.path / "epoch").read_text())
    folder = mqtune.get_context().folder / "state"
    folder.mkdir()
    while True:
        epoch += 1
        (folder / "epoch").write_text(str(epoch))
        mqtune.report({"epoch": epoch}, checkpoint=folder)
        time.sleep(0.002)

def waits_for(config):
    mqtune.report({"loss": 1})
    while not os.path.exists(config["file"]):
        time.sleep(0.01)

def imports_late(config):
    import sys
    there = "wave" in sys.modules
    import wave
    mqtune.report({"loss": float(there)})

def saves_a_dict(config):
    mqtune.report({"loss": 1.0}, checkpoint={"state": 1})


def reports_twice(config):
    waits_for(config)
    mqtune.report({"loss": 2})

def exits_under_a_frozen_zygote(config):
    mqtune.report({"loss": 1})
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(3)

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

def reports_while_it_unwinds(config):
    try:
        endless(config)
    except mqtune.StopTrial:
        try:
            mqtune.report({"loss": 2})
        except BaseException:
            pass
        mqtune.save_checkpoint({"epoch": 7})
        raise
    finally:
        print("cleaned up", flush=True)

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
    Path("model.txt").write_text(config["who"])
    time.sleep(config.get("sleep_s", 0))
    context = mqtune.get_context()
    folder = {"folder": str(context.folder), "real_folder": os.path.realpath(context.folder)}
    mqtune.report({"loss": 1, "here": os.getcwd(), "code": Path("worker_code.py").read_text()[:10], **folder})
    if config.get("fails"):
        raise ValueError("no luck")

def appends(config):
    with open("shared.txt", "a") as file:
        file.write(" more")
    mqtune.report({"loss": 1, "text": Path("shared.txt").read_text()})

def tells_where(config):
    mqtune.report({"loss": 1, "here": os.getcwd()})

def forges(config):
    from mqtune.trainable.process.protocol import FRAME
    from mqtune.trainable.reporting import here
    mqtune.report({"loss": 1})
    os.write(here()._pipe, FRAME.pack(13, 1) + b"no report at all")
    time.sleep(60)

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

def is_killed(config):
    mqtune.report({"loss": 1})
    os.kill(os.getpid(), config["signal"])

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

#: A trial that is told to stop is given no time.
HASTY: Final = Timing(lease_s=60.0, stop_grace_s=0.01)


@pytest.fixture
def timing() -> Timing:
    return Timing(lease_s=60.0)


@pytest.fixture
def machine(tmp_path: Path, timing: Timing) -> Iterator[Machine]:
    machine = Machine(tmp_path, CODE, timing)
    yield machine
    machine.close()


def made_store(folder: Path) -> str:
    store = open_store(str(folder / "store"))
    store.create()
    return store.url


def test_an_attempt_tells_where_and_with_what_it_ran(machine: Machine) -> None:
    one = machine.start("steady")

    assert one.ended().end is AttemptEnd.COMPLETED
    (started,) = one.of(AttemptStarted)
    assert (started.worker, started.queue) == ("w1@here", "mqtune.cpu1")
    assert set(started.environment) == {"python", "platform", "mqtune", "packages", "code"}
    assert started.environment["code"]
    assert [report.metrics["loss"] for report in one.reports] == [1.0, 0.5, 1 / 3]


def test_an_attempt_that_did_well_opens_no_device_that_the_slots_next_one_has_closed(machine: Machine) -> None:
    """Its worker comes to note how it fared behind its end, and on a busy machine behind the next one's."""
    one = machine.start("steady")
    assert one.ended().end is AttemptEnd.COMPLETED
    impairments, devices = nothing_impaired(), ("0",)
    failures = QuickFailures("w1", impairments, lambda _: [])
    failures.note_failed(machine.driver, 0, devices, "0002", "CUDA error: uncorrectable ECC error", broken=True)
    assert quarantined(impairments) == {"0"}

    one.run.devices = devices
    assert one.outcome is not None
    failures.take(one.run, one.outcome)
    failures.look(one.run)

    assert quarantined(impairments) == {"0"}
    impairments.close()


def test_a_revoke_that_reaches_several_workers_is_one_request_and_what_waits_does_not_begin(machine: Machine) -> None:
    machine.stage()
    for _ in range(3):
        revoke(machine.services, MemoryJournal(machine.server, "e"), TrialId("0001"), 1)

    (request,) = (event for event in machine.events() if isinstance(event, Requested))
    assert (request.action, request.trial) == ("stop", "0001")
    assert machine.attempt(1).ended_unclaimed() == "not run: revoked"


def test_a_revoke_of_an_attempt_that_runs_or_is_not_there_is_a_request_alone(machine: Machine) -> None:
    one = machine.start("endless").has_reported(1)
    for trial in ("0001", "0002"):
        revoke(machine.services, MemoryJournal(machine.server, "e"), TrialId(trial), 1)

    assert [event.trial for event in machine.events() if isinstance(event, Requested)] == ["0001", "0002"]
    assert not one.of(AttemptEnded)
    one.run.terminate(kill=False)
    assert one.ended().error == "terminated by an operator through Celery"


def test_a_worker_that_ends_in_the_middle_of_an_import_begins_no_other_and_blames_no_module(
    machine: Machine, tmp_path: Path
) -> None:
    slow = "import pathlib, time\nfile = pathlib.Path(__file__).with_name('imports')\n"
    slow += "file.write_text(file.read_text() + 'x' if file.exists() else 'x')\ntime.sleep(600)\n"
    (machine.code_root / "worker_code.py").write_text(slow + CODE)
    one = machine.start("steady")
    imports = machine.code_root / "imports"
    eventually(lambda: imports.exists() and imports.read_text())

    one.run.requeue("the worker shuts down")
    machine.services.slots.end()

    assert eventually(lambda: one.outcome).end is None
    assert imports.read_text() == "x"
    (importer,) = machine.services.slots.importers.all
    assert machine.services.slots.late_imports.of(importer.key.spec), "what trials import late may be imported early"


def test_what_a_trial_imports_late_later_ones_find(machine: Machine) -> None:
    found = []
    for number in range(1, 5):
        one = machine.start("imports_late", trial=f"000{number}")
        one.ended()
        found.append(one.reports[0].metrics["loss"])

    assert (found[0], found[-1]) == (0.0, 1.0)


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


def test_an_attempt_that_needs_no_import_is_claimed_without_another_word(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.start("steady").ended()
    said: list[object] = []
    monkeypatch.setattr(MemoryJournal, "hold", lambda _, held, __: said.extend(held))

    assert machine.start("steady", trial="0002").ended().end is AttemptEnd.COMPLETED

    assert said == []


@pytest.mark.parametrize("which", ["importer", "zygote"])
def test_a_process_that_is_killed_while_no_trial_uses_it_is_no_zombie_for_long(machine: Machine, which: str) -> None:
    machine.start("steady").ended()
    (zygote,), (importer,) = machine.slot.zygotes.all, machine.services.slots.importers.all
    process = psutil.Process(zygote.pid if which == "zygote" else importer.pid)

    process.kill()

    eventually(lambda: machine.services.slots.trim(IMPORTER_IDLE_S) or not process.is_running())
    assert machine.start("steady", trial="0002").ended().end is AttemptEnd.COMPLETED


def test_an_attempt_that_cannot_be_attached_leaves_no_pipe_open_and_the_next_one_runs(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes: list[str] = []

    def refuse(_: Uplink, stream: Stream) -> NoReturn:
        pipes.append(os.readlink(f"/proc/self/fd/{stream.write_end}"))
        raise OSError("no descriptor is left")

    machine.start("steady").ended()
    with monkeypatch.context() as patched:
        patched.setattr(Uplink, "attach", refuse)
        failed = machine.start("steady", trial="0002")
        assert "no descriptor is left" in failed.ended().error

    assert machine.start("steady", trial="0003").ended().end is AttemptEnd.COMPLETED
    opened = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    assert opened.isdisjoint(pipes)
    assert pipes


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


@pytest.mark.parametrize("timing", [HASTY])
@pytest.mark.parametrize(("grace_s", "step_s"), [(60.0, 0.5), (0.1, 30.0)])
def test_a_step_that_is_long_is_ended_and_saved_if_the_workers_grace_lasts(
    machine: Machine, tmp_path: Path, grace_s: float, step_s: float
) -> None:
    """Longer than a trial that is told to stop may take."""
    machine.grace_s = grace_s
    mark = tmp_path / "mark"
    one = machine.start("Steps", {"later_steps_s": step_s, "mark": str(mark)}, kind="class").has_reported(1)
    eventually(mark.exists)

    one.run.requeue("its worker was drained")

    assert one.ended().end is AttemptEnd.HANDED_BACK
    assert len(one.of(CheckpointSaved)) == (grace_s > step_s)


@pytest.mark.parametrize("timing", [HASTY])
def test_a_trial_that_gives_way_has_time_to_save_until_it_is_to_hurry(machine: Machine, tmp_path: Path) -> None:
    """As much as one that is paused by hand: nothing of it is lost because others have come."""
    marks = [tmp_path / "first", tmp_path / "second"]
    for mark, step_s in zip(marks, (0.5, 60.0), strict=True):
        one = machine.start("Steps", {"later_steps_s": step_s, "mark": str(mark)}, kind="class").has_reported(1)
        eventually(mark.exists)
        one.intend(Intent.GIVE_WAY)
        if step_s > 0.5:
            assert not one.run.is_ending, "no other trial waits here for what may take minutes"
            # Its driver is interrupted meanwhile.
            one.intend(Intent.HAND_BACK)

        assert one.ended().end is AttemptEnd.HANDED_BACK
        assert len(one.of(CheckpointSaved)) == (step_s == 0.5)


def test_a_word_that_no_driver_of_this_version_says_is_passed_over(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    one = machine.start("endless").has_reported(1)
    long = ("save:" + "9" * 400, "go:" + "9" * 400, "go:" + "9" * 5_000 + ":b25l", "save:1e400")
    for word in ("no-such-intent", "save:x", "save:-1", "go:99999999999999999999999", *long):
        one.run.on_answer(word)
        assert f"got {word!r:.100}, which this version of mqtune does not understand" in caplog.text

    assert one.intend(Intent.STOP).ended().end is AttemptEnd.STOPPED


def test_any_text_in_place_of_orders_leaves_the_trial_running_and_raises_nothing(machine: Machine) -> None:
    """A team's account may write any orders for its own trials, and the calling thread serves the trials of others."""
    one = machine.start("endless").has_reported(1)
    ends = {*(intent.value for intent in Intent), UNDRIVEN, FENCED, GAP}
    numbers = (
        st.integers().map(str) | st.integers(0, 6_000).map("9".__mul__) | st.floats().map(str) | st.text(max_size=9)
    )
    orders = st.builds(
        ":".join, st.lists(st.sampled_from(["save", "go", "wait", ""]) | numbers, min_size=1, max_size=3)
    )

    @settings(max_examples=200, deadline=None, database=None)
    @given(st.lists(orders | st.text(max_size=20), max_size=4).map(" ".join))
    def write(answer: str) -> None:
        assume(not ends & {*answer.split()})
        one.run.on_answer(answer)

    write()

    assert not one.run.is_ending
    assert one.intend(Intent.STOP).ended().end is AttemptEnd.STOPPED


def test_an_error_in_an_answer_to_one_trial_does_not_reach_the_thread_that_serves_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = machine.start("endless").has_reported(1)

    def fail(*_: object) -> NoReturn:
        raise RuntimeError("nobody has thought of this")

    with monkeypatch.context() as broken:
        broken.setattr(ControlPipe, "request_save", fail)
        one.run.on_answer("save:1")

    assert "'save:1' can't be applied" in caplog.text
    assert one.intend(Intent.STOP).ended().end is AttemptEnd.STOPPED


@pytest.mark.parametrize(
    ("intent", "end", "told"),
    [(Intent.STOP, AttemptEnd.STOPPED, "stop"), (Intent.PAUSE, AttemptEnd.PAUSED, "pause")],
)
def test_a_trial_that_catches_every_stop_ends_at_a_report_and_says_why(
    machine: Machine, intent: Intent, end: AttemptEnd, told: str
) -> None:
    why = (
        f"did not end when it was told to {told}: a bare `except:` or `except BaseException:` has caught StopTrial; write "
        "`except Exception:`"
    )
    one = machine.start("catches_all").has_reported(3)
    began = time.monotonic()

    ended = one.intend(intent).ended()

    assert time.monotonic() - began < Timing().stop_grace_s - 3, "it had the slot until its worker lost patience"
    assert (ended.end, ended.signal, ended.error) == (end, signal.SIGTERM, why)
    assert ended.stderr_tail == f"{why}\n"


NO_CHILD = (
    "report: this is a child process of the trial, which can't report or save: pass the values to the trial's own process, such "
    "as through a multiprocessing.Queue or a file, and report them there"
)


@pytest.mark.parametrize(
    ("how", "config", "end", "reports"),
    [
        ("reports_from_a_fork", {}, AttemptEnd.COMPLETED, []),
        ("reports_from_a_program", {}, AttemptEnd.COMPLETED, []),
        ("reports_from_a_fork", {"fails": True}, AttemptEnd.FAILED, []),
        # It reports itself, so it has no error.
        ("reports_from_a_program", {"also": True}, AttemptEnd.COMPLETED, [2]),
    ],
)
def test_a_trial_without_reports_of_its_own_says_that_a_child_process_has_tried_to_report(
    machine: Machine, how: str, config: dict[str, Any], end: AttemptEnd, reports: list[int]
) -> None:
    one = machine.start(how, config)
    ended = one.ended()

    assert (ended.end, [report.metrics["loss"] for report in one.reports]) == (end, reports)
    assert ended.error.startswith("" if reports else NO_CHILD)
    assert ended.error_type == ("ValueError" if config.get("fails") else "")
    if end is AttemptEnd.COMPLETED:
        assert ended.error == ("" if reports else NO_CHILD)
        assert f"RuntimeError: {NO_CHILD}" in ended.stderr_tail
    else:
        assert ended.error.rstrip().endswith("ValueError: the child has failed")


def test_a_stopped_trial_can_report_once_more_and_save_while_it_unwinds(machine: Machine) -> None:
    one = machine.start("reports_while_it_unwinds").has_reported(3)

    ended = one.intend(Intent.STOP).ended()

    assert (ended.end, ended.error, ended.exit_code) == (AttemptEnd.STOPPED, "", 0)
    assert ended.stdout_tail.endswith("cleaned up\n")
    assert len(one.of(CheckpointSaved)) == 1


def test_one_that_is_paused_and_then_stopped_is_stopped(machine: Machine) -> None:
    one = machine.start("deaf").has_reported(1).intend(Intent.PAUSE)
    one.intend(Intent.STOP)
    one.run.terminate(kill=True)

    assert one.ended().end is AttemptEnd.STOPPED


@pytest.mark.parametrize(("lost", "how"), [(1, AttemptEnd.COMPLETED), (2, AttemptEnd.LOST)])
def test_no_attempt_has_ended_without_reports_that_a_server_has_lost_before_its_end(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int, how: AttemptEnd
) -> None:
    """What was written last is written again; of what lacks more, the trial runs again."""
    report, end = MemoryJournal.report, MemoryJournal.end
    before: list[Any] = []
    losses: list[Any] = []

    def reports_(journal: MemoryJournal, segments: Sequence[Segment]) -> list[Answer]:
        if not losses:
            before.append(snapshot(machine.server))
        return report(journal, segments)

    def ends(journal: MemoryJournal, claim: Claim, event: bytes, reports: int = 0, by: EndedBy = "itself") -> bool:
        if not losses:
            losses.append(before[-lost])
            set_back(machine.server, losses[0])
        return end(journal, claim, event, reports, by)

    monkeypatch.setattr(MemoryJournal, "report", reports_)
    monkeypatch.setattr(MemoryJournal, "end", ends)
    file = tmp_path / "file"
    one = machine.start("reports_twice", {"file": str(file)}).has_reported(1)
    file.touch()
    ended = one.ended()

    assert ended.end is how
    assert len(one.reports) == (2 if how is AttemptEnd.COMPLETED else 0)
    assert ended.error_type == ("" if how is AttemptEnd.COMPLETED else "Gap")


def test_no_attempt_has_ended_without_a_dict_that_a_server_has_lost_before_the_report_that_names_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = MemoryJournal.report
    lost: list[str] = []

    def reports_(journal: MemoryJournal, segments: Sequence[Segment]) -> list[Answer]:
        if not lost:
            held = machine.server.experiments[journal.experiment].checkpoints
            lost.extend(held)
            held.clear()
            journal.outages += 1
        return report(journal, segments)

    monkeypatch.setattr(MemoryJournal, "report", reports_)
    one = machine.start("saves_a_dict")

    assert one.ended().end is AttemptEnd.COMPLETED
    assert [report.checkpoint for report in one.reports] == lost
    assert list(machine.server.experiments[one.run.journal.experiment].checkpoints) == lost


def test_a_heartbeat_that_meets_the_journaled_end_is_no_refusal(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was on its way when the end was journaled, and is told that there is no such attempt any more."""
    end, told = MemoryJournal.end, []

    def ends(journal: MemoryJournal, claim: Claim, event: bytes, reports: int = 0, by: EndedBy = "itself") -> bool:
        counted = end(journal, claim, event, reports, by)
        for run in machine.runs:
            (answer,) = journal.renew([run.claim], 60.0)
            told.append(answer)
            run.on_answer(answer)
        return counted

    monkeypatch.setattr(MemoryJournal, "end", ends)
    attempt = machine.start("steady")

    assert attempt.ended().end is AttemptEnd.COMPLETED
    assert told == ["fenced"]
    assert "refuses" not in caplog.text


@pytest.mark.parametrize("timing", [Timing(lease_s=60.0, terminate_grace_s=0.1)])
def test_one_that_will_not_hear_is_killed_when_the_grace_is_over(machine: Machine, timing: Timing) -> None:
    machine.grace_s = 0.1

    # A pause has time, and a worker that closes has none.
    paused = machine.start("deaf").has_reported(1).intend(Intent.PAUSE)
    paused.run.requeue("its worker was shut down")
    assert paused.ended().end is AttemptEnd.PAUSED
    handed_back = machine.start("deaf", trial="0002").has_reported(1)
    handed_back.run.requeue("its worker was shut down")
    assert handed_back.ended().end is AttemptEnd.HANDED_BACK
    machine.services = replace(machine.services, timing=replace(timing, pause_grace_s=0.1))
    assert machine.start("deaf", trial="0003").has_reported(1).intend(Intent.PAUSE).ended().end is AttemptEnd.PAUSED


@pytest.mark.parametrize(
    ("kills", "how", "code"),
    [(1, "os.kill(os.getpid(), 9)", None), (2, "os.kill(os.getpid(), 9)", -9), (2, "os._exit(5)", 5)],
)
def test_an_import_that_ends_its_process_or_is_killed_from_outside_is_tried_once_more(
    machine: Machine, tmp_path: Path, kills: int, how: str, code: int | None
) -> None:
    mark = f"import os; marks = os.listdir({str(tmp_path)!r}).count; killed = [m for m in '12' if marks(m)]"
    kill = f"if len(killed) < {kills}: open({str(tmp_path)!r} + '/' + '12'[len(killed)], 'w'); {how}"
    (machine.code_root / "worker_code.py").write_text(f"{mark}\n{kill}\n{CODE}")

    ended = machine.start("steady").ended()

    if code is None:
        assert ended.end is AttemptEnd.COMPLETED
    else:
        assert (ended.end, ended.error_type) == (AttemptEnd.HANDED_BACK, "ImportDied")
        assert f"died with {code}" in ended.error


@pytest.mark.parametrize("broken", ["definition", "code root", "checkpoint"])
def test_whatever_is_wrong_before_a_trial_runs_ends_the_attempt_with_the_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Else the driver would publish it again and again."""

    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    definition: dict[str, Any] = {}
    match broken:
        case "definition":
            definition["trainable"] = {"script": 7}
        case "code root":
            machine.code_root.rename(machine.code_root.with_name("gone"))
        case "checkpoint":
            monkeypatch.setattr(MemoryJournal, "checkpoint", fail)
            definition["checkpoint"] = "m-0001-1-1"

    ended = machine.start("steady", **definition).ended()

    assert (ended.end, ended.pid) == (AttemptEnd.HANDED_BACK, 0)
    assert ended.error_type
    assert "w1@here" in ended.error
    monkeypatch.undo()
    if broken == "code root":
        machine.code_root.with_name("gone").rename(machine.code_root)
    assert machine.start("steady", trial="0002").ended().end is AttemptEnd.COMPLETED


@pytest.mark.parametrize("timing", [Timing(full_retry_s=0.01, least_wait_s=0.01)])
def test_an_attempt_ends_with_the_time_for_which_its_data_waited_for_a_full_server(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = machine.start("reports_twice").ended()
    report, refusals = MemoryJournal.report, iter(range(20))

    def refuse(journal: MemoryJournal, segments: Sequence[Segment]) -> list[Answer]:
        if next(refusals, None) is not None:
            raise BrokerFull("Redis is full")
        return report(journal, segments)

    monkeypatch.setattr(MemoryJournal, "report", refuse)

    assert "redis_wait_s" not in usual.usage
    assert machine.start("reports_twice").ended().usage["redis_wait_s"] >= 0.1


def test_an_attempt_that_its_worker_cannot_end_is_handed_back_with_the_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(attempt_module.AttemptOutcome, "ending", fail)
    for number in range(1, FAILED_STARTS + 1):
        assert machine.back_off.allows is None
        one = machine.start("steady")
        ended = one.ended()
        assert (ended.end, ended.error_type) == (AttemptEnd.HANDED_BACK, WORKER_ERROR)
        assert ended.error == "on worker w1@here: the attempt could not be ended: RuntimeError: out of luck"
        assert len(one.reports) == 3, number

    assert machine.back_off.allows == 0
    monkeypatch.undo()
    assert machine.start("steady").ended().end is AttemptEnd.COMPLETED
    assert machine.back_off.allows is None


def test_a_worker_that_can_start_nothing_takes_nothing_for_a_while_until_it_can(machine: Machine) -> None:
    """Trials that fail by themselves are no reason."""
    for name in ("raises", "no_such"):
        for trial in ("0001", "0002", "0003"):
            assert machine.back_off.allows is None
            machine.start(name, trial=trial).ended()

    assert machine.back_off.allows == 0
    machine.start("steady").ended()
    assert machine.back_off.allows is None


def test_another_trainables_trial_starts_when_the_process_before_it_in_the_slot_is_gone(
    machine: Machine, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    machine.start("notes_start", {"log": str(tmp_path / "unread")}, trial="0002").ended()
    one = machine.start("goes_slowly", {"log": str(log)}, trial="0003").has_reported(1).intend(Intent.STOP)

    two = machine.start("notes_start", {"log": str(log)}, trial="0004")

    assert (one.ended().end, two.ended().end) == (AttemptEnd.STOPPED, AttemptEnd.COMPLETED)
    assert log.read_text().splitlines() == ["the first goes", "the second runs"]


#: Nobody waits long for a frozen zygote, nor for the steps of the stop ladder; a zygote at work takes less to start a trial.
IMPATIENT: Final = pytest.mark.parametrize(
    "timing",
    [
        Timing(
            zygote_silence_s=0.3,
            stop_grace_s=0.3,
            terminate_grace_s=0.3,
            zygote_start_s=2.0,
            zygote_exchange_s=2.0,
            zygote_close_s=1.0,
        )
    ],
)


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
    """One that hears nothing has every rung of the ladder climbed."""
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


@pytest.mark.parametrize("timing", [Timing(zygote_silence_s=3.0)])
def test_a_trial_that_exits_under_a_frozen_zygote_has_not_outlived_its_time(machine: Machine) -> None:
    ended = machine.start("exits_under_a_frozen_zygote", ttl_s=2.0).ended()

    assert (ended.end, ended.error_type) == (AttemptEnd.FAILED, "Exited")


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


def test_a_trial_that_no_zygote_starts_is_lost_with_the_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ZygoteHandle, "wait_started", lambda self: self.take_over("started no process within 30 s"))

    # One that ends by itself may have done so before its zygote is killed.
    ended = machine.start("endless").ended()

    assert (ended.end, ended.error_type, ended.pid) == (AttemptEnd.LOST, "ZygoteSilent", 0)
    assert "started no process within 30 s" in ended.error


# Where a trial runs.


def test_trials_with_folders_of_their_own_read_the_codes_files_and_do_not_overwrite_each_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(machine.code_root)
    settings = {"working_dir": "trial", "keep_working_dir": "always"}
    for who in ("0001", "0002"):
        one = machine.start("keeps_files", {"who": who}, trial=who, **settings)

        assert one.ended().end is AttemptEnd.COMPLETED
        (started,) = one.of(AttemptStarted)
        metrics = one.reports[0].metrics
        # The folder that others see is a link to the place of the attempt, until that has ended.
        assert (metrics["folder"], metrics["real_folder"]) == (started.working_dir, metrics["here"])
        assert metrics["code"] == CODE[:10]
        assert os.listdir(started.working_dir) == ["model.txt"]
        assert (Path(started.working_dir) / "model.txt").read_text() == who
        assert not Path(metrics["here"]).exists()


def test_an_existing_file_that_trials_append_to_is_each_trials_own(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(machine.code_root)
    shared = machine.code_root / "shared.txt"
    shared.write_text("one")
    for trial in ("0001", "0002"):
        one = machine.start("appends", trial=trial, working_dir="trial", keep_working_dir="always")

        assert one.ended().end is AttemptEnd.COMPLETED
        (started,) = one.of(AttemptStarted)
        assert one.reports[0].metrics["text"] == "one more"
        assert (Path(started.working_dir) / "shared.txt").read_text() == "one more"
        assert f"its own copy of {shared.resolve()}" in Path(started.stderr_path).read_text()
    assert shared.read_text() == "one"


@pytest.mark.parametrize(("keep", "kept"), [("always", {"bad", "well"}), ("failed", {"bad"}), ("never", set())])
def test_a_folder_of_its_own_is_kept_by_the_rule(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, keep: str, kept: set[str]
) -> None:
    monkeypatch.chdir(machine.code_root)
    settings = {"working_dir": "trial", "keep_working_dir": keep}
    folders = {}
    # One in which nothing was written is never kept.
    for trial, name in (("bad", "keeps_files"), ("well", "keeps_files"), ("empty", "tells_where")):
        one = machine.start(name, {"who": trial, "fails": trial == "bad"}, trial=trial, **settings)
        one.ended()
        folders[trial] = Path(one.of(AttemptStarted)[0].working_dir)
        assert not Path(one.reports[0].metrics["here"]).exists()

    assert {trial for trial, folder in folders.items() if folder.exists()} == kept
    assert not list(machine.log_root.glob(".scratch/*/*"))


def test_the_store_and_the_working_directory_do_not_get_into_each_others_way(machine: Machine, tmp_path: Path) -> None:
    """What is fetched to go on from is no file of the trial's."""
    store = made_store(tmp_path)
    settings = {"store": store, "working_dir": "trial", "keep_working_dir": "always"}
    first = machine.start("files", **settings).has_reported(1).intend(Intent.PAUSE)
    first.ended()

    second = machine.start("files", checkpoint=first.reports[-1].checkpoint, **settings).has_reported(1)
    second.intend(Intent.STOP).ended()

    (started,) = second.of(AttemptStarted)
    assert [path.name for path in Path(started.working_dir).iterdir()] == ["state"]


def test_a_trial_that_sends_what_no_trial_sends_has_failed_and_its_reports_count(machine: Machine) -> None:
    one = machine.start("forges")

    ended = one.ended()

    assert (ended.end, ended.error_type) == (AttemptEnd.FAILED, "Noise")
    assert "file descriptors" in ended.error
    assert [report.metrics["loss"] for report in one.reports] == [1]


def test_a_trial_that_has_closed_its_pipe_is_told_so_and_writes_nothing_elsewhere(
    machine: Machine, tmp_path: Path
) -> None:
    one = machine.start("closes_everything", {"file": str(tmp_path / "own")})

    ended = one.ended()

    assert [report.metrics["loss"] for report in one.reports] == [1]
    assert (tmp_path / "own").read_bytes() == b""
    assert ended.stdout_tail.count("refused: ") == 5
    assert "os.closerange" in ended.stdout_tail
    assert (ended.end, ended.error_type) == (AttemptEnd.FAILED, "PipeClosed")
    assert "os.closerange" in ended.error


# What code a trial runs.


SPEC = TrainableSpec("tells_version", module="versioned")


class Versioned:
    """A trainable that reports the version that stands in a file that it imports, and one that it imports when it runs."""

    def __init__(self, machine: Machine) -> None:
        self.root = machine.code_root
        self.write(1)
        self.definition = self.read()

    def write(self, version: int, more: str = "") -> None:
        (self.root / "versioned.py").write_text(
            "import mqtune, versioned_first\n"
            "def tells_version(config):\n"
            "    import versioned_later\n"
            "    mqtune.report({'loss': versioned_first.VERSION, 'later': versioned_later.VERSION})\n"
        )
        for name in ("first", "later"):
            (self.root / f"versioned_{name}.py").write_text(f"VERSION = {version}{more}\n")

    def read(self) -> dict[str, Any]:
        """Return what the definition of an experiment with the code of now has of it."""
        return {"trainable": SPEC.encode(), "code_files": fingerprints(SPEC, read_code(SPEC, self.root))}


@pytest.fixture
def versioned(machine: Machine) -> Versioned:
    return Versioned(machine)


def test_a_zygote_serves_on_while_its_files_are_edited_and_another_version_has_another(
    machine: Machine, versioned: Versioned
) -> None:
    def run(definition: dict[str, Any]) -> tuple[int, int]:
        one = machine.start("", **definition)
        assert one.ended().end is AttemptEnd.COMPLETED
        assert "differs" not in one.of(AttemptStarted)[0].environment
        return one.reports[0].metrics["loss"], one.reports[0].metrics["later"]

    old = versioned.definition
    assert run(old) == (1, 1)
    (zygote,) = machine.slot.zygotes.all
    versioned.write(2)
    new = versioned.read()

    assert [run(old), run(new), run(old)] == [(1, 1), (2, 2), (1, 1)]

    assert zygote in machine.slot.zygotes.all
    assert len(machine.slot.zygotes.all) == 2


def test_code_that_is_not_the_experiments_runs_and_is_recorded_until_it_is_put_right(
    machine: Machine, versioned: Versioned
) -> None:
    """In the same slot, and without an end of its importer."""
    told = {}
    for version in (2, 1):
        versioned.write(version)
        one = machine.start("", **versioned.definition)
        assert one.ended().end is AttemptEnd.COMPLETED
        assert one.reports[0].metrics["loss"] == version
        told[version] = one.of(AttemptStarted)[0].environment

    assert told[2]["differs"] == ["versioned_first.py", "versioned_later.py"]
    assert "differs" not in told[1]


def test_an_import_that_fails_says_which_code_is_not_the_experiments(machine: Machine, versioned: Versioned) -> None:
    versioned.write(2, more=" + (")

    ended = machine.start("", **versioned.definition).ended()

    assert (ended.end, ended.error_type) == (AttemptEnd.HANDED_BACK, "SyntaxError")
    assert "versioned_first.py, versioned_later.py there is not as it was when the experiment began" in ended.error


@pytest.mark.parametrize("first", ["", "import sys\nsys.setrecursionlimit(2000)\n"])
def test_a_program_with_a_package_that_no_fork_can_have_runs_in_each_trial(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whether its first statement imports the package, or a later one, which its scout finds."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (installed / "starts_a_thread.py").write_text(f"import os\nPID = os.getpid()\n{thread}")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    code = "import mqtune\ndef own(config): mqtune.report({'loss': 1, 'same': starts_a_thread.PID == starts_a_thread.os.getpid()})\n"
    (machine.code_root / "worker_code.py").write_text(f"{first}import starts_a_thread\n{code}")

    for trial in ("0001", "0002"):
        one = machine.start("own", trial=trial)
        assert one.ended().end is AttemptEnd.COMPLETED
        assert one.reports[0].metrics["same"] is True


def test_a_script_with_an_import_that_crashes_says_so_in_a_process_of_its_own(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "needs_avx512.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)\n")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    (machine.code_root / "crashes.py").write_text("import needs_avx512\n")
    spec = TrainableSpec("crashes", script="crashes.py", kind="script")

    ended = machine.start("", trainable=spec.encode()).ended()

    assert (ended.end, ended.error_type) == (AttemptEnd.FAILED, "Killed")
    assert "SIGILL" in ended.error
