from __future__ import annotations

import base64
import contextlib
import fcntl
import logging
import math
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from attempts import called, own_metrics, start_message, whole_frames
from waiting import DEADLINE_S, eventually

import mqtune
from mqtune import StopTrial, report
from mqtune.checkpoints import decode_dict, open_store
from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import CheckpointBroken, CheckpointGone, ConfigurationError
from mqtune.core.trial import AttemptEnd
from mqtune.trainable import (
    FRAME_CHECKPOINT,
    FRAME_END,
    FRAME_REPORT,
    FRAME_SAVED,
    STOP_SIGNAL,
    Session,
    reporting,
)
from mqtune.trainable.process import session
from mqtune.worker import ControlPipe


class Pipe:
    """A trial's pipe, as its worker has it."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self._data = b""

    def drain(self) -> bytes:
        """Take what is there; return all that was ever there."""
        os.set_blocking(self.read_end, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.read_end, 2**16):
                self._data += data
        return self._data

    def frames(self) -> list[tuple[int, bytes]]:
        """Return all frames that were sent; each must be whole."""
        return whole_frames(self.drain())

    def reports(self) -> list[tuple[float, dict[str, Any]]]:
        """Their times and metrics, without what comes with each."""
        found = [decode_value(body) for kind, body in self.frames() if kind == FRAME_REPORT]
        return [(at, own_metrics(metrics)) for at, metrics, *_ in found]

    def close(self) -> None:
        for fd in (self.read_end, self.write_end):
            with contextlib.suppress(OSError):
                os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with contextlib.closing(Pipe()) as pipe:
        yield pipe


def test_reports_are_frames_in_their_order_and_a_refused_one_leaves_nothing(attempt: Session, pipe: Pipe) -> None:
    sent = [{"loss": number / 2, "far": math.inf, "note": "ü", "nested": {"a": [number, None]}} for number in range(5)]
    refused: list[Any] = [{"a": 1, "b": object()}, {"a": [1, object()]}, {1: 2}, {"a": 2**70}, None]
    for metrics, wrong in zip(sent, refused, strict=True):
        with pytest.raises(TypeError, match="report: "):
            report(wrong)
        mqtune.report(metrics)

    assert [kind for kind, _ in pipe.frames()] == [FRAME_REPORT] * 5
    assert [metrics for _, metrics in pipe.reports()] == sent


@pytest.mark.parametrize(
    ("message", "clock", "times"),
    [
        ({"epoch_s": 1000.0}, [5.0, 6.5, 7.0], [1005.0, 1006.5, 1007.0]),
        ({"epoch_s": 0.0, "timestamp": 200.0}, [100.0, 205.0], [200.0, 205.0]),
    ],
)
def test_times_are_those_of_the_clock_that_all_machines_share_and_never_before_an_earlier_attempts(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, message: dict[str, Any], clock: list[float], times: list[float]
) -> None:
    current = Session(start_message(**message), [pipe.write_end, -1])

    for now in clock:
        monkeypatch.setattr(session, "monotonic", lambda now=now: now)
        current.report({"loss": 1})

    assert [at for at, _ in pipe.reports()] == times


def test_a_signal_in_the_middle_of_a_frame_is_heeded_when_the_frame_is_whole(attempt: Session, pipe: Pipe) -> None:
    main, over = threading.main_thread().ident, threading.Event()
    assert main is not None
    fcntl.fcntl(pipe.write_end, getattr(fcntl, "F_SETPIPE_SZ", 1031), 1)

    def signal_when_full() -> None:
        eventually(lambda: not select.select([], [pipe.write_end], [], 0)[1])
        signal.pthread_kill(main, STOP_SIGNAL)
        while not over.wait(0.001):
            pipe.drain()

    teller = threading.Thread(target=signal_when_full)
    teller.start()
    with pytest.raises(StopTrial):
        report({"raw": bytes(200_000)})
    over.set()
    teller.join(DEADLINE_S)

    assert [metrics for _, metrics in pipe.reports()] == [{"raw": bytes(200_000)}]
    attempt.end(b"stopped")
    assert pipe.frames()[-1] == (FRAME_END, b"stopped"), "the lock is free"


@pytest.fixture
def control() -> Iterator[ControlPipe]:
    with contextlib.closing(ControlPipe()) as control:
        yield control


@pytest.fixture
def attempt(pipe: Pipe, control: ControlPipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """This process is a trial with everything that a worker gives it."""
    monkeypatch.setattr(reporting, "current", None)
    before = signal.getsignal(STOP_SIGNAL)
    yield open_attempt(pipe, control, tmp_path)
    signal.signal(STOP_SIGNAL, before)


def open_attempt(pipe: Pipe, control: ControlPipe, folder: Path, **message: Any) -> Session:
    whole = {"trial": "0007", "attempt": 2, "experiment": "mnist", "folder": str(folder / "attempt"), **message}
    current = reporting.current = Session(start_message(**whole), [pipe.write_end, control.read_end])
    signal.signal(STOP_SIGNAL, current.on_stop_signal)
    return current


@pytest.mark.parametrize("told", ["stop", "pause"])
def test_the_stop_signal_says_whether_it_is_for_good_and_a_later_report_raises_again_and_the_next_ends_the_process(
    attempt: Session, control: ControlPipe, pipe: Pipe, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    terminations: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: terminations.append(number))
    control.tell(told)

    with pytest.raises(StopTrial) as stop:
        signal.raise_signal(STOP_SIGNAL)

    assert stop.value.action == told
    assert attempt.known_order == told
    with pytest.raises(StopTrial) as again:
        report({"loss": 1})
    assert again.value.action == told
    with ThreadPoolExecutor(1) as thread:
        for _ in range(3):
            # A thread does not end the process of others.
            assert type(thread.submit(report, {"loss": 1}).exception()) is StopTrial
    assert pipe.frames() == []
    assert terminations == []

    for _ in range(2):
        with pytest.raises(StopTrial):
            report({"loss": 1})

    signal.signal(signal.SIGTERM, before)
    assert terminations == [signal.SIGTERM], "code of the user has handled the first one, and has its time for that"
    ((kind, body),) = pipe.frames()
    said = decode_value(body)
    assert (kind, said["end"], said["heard"]) == (FRAME_END, "paused" if told == "pause" else "stopped", told)
    assert said["error"] == capsys.readouterr().err.rstrip()
    assert f"did not end when it was told to {told}" in said["error"]


def test_a_wish_for_a_checkpoint_is_seen_until_one_is_saved(attempt: Session, control: ControlPipe) -> None:
    assert not mqtune.should_checkpoint()

    control.request_save(1)
    control.request_save(1)
    assert mqtune.should_checkpoint()
    assert mqtune.should_checkpoint()
    report({"loss": 1})
    assert mqtune.should_checkpoint()
    report({"loss": 1}, checkpoint={"epoch": 1})
    assert not mqtune.should_checkpoint()

    control.request_save(2)
    assert mqtune.should_checkpoint()
    mqtune.save_checkpoint({"epoch": 2})
    assert not mqtune.should_checkpoint()


@contextlib.contextmanager
def decided(pipe: Pipe, decide: Callable[[int], object]) -> Iterator[None]:
    """Decide on reports as they come, in a thread of its own."""
    over = threading.Event()

    def run() -> None:
        seen = 0
        while not over.wait(0.0005):
            while seen < len(pipe.reports()):
                seen += 1
                decide(seen)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    over.set()
    thread.join(DEADLINE_S)


def test_a_question_waits_for_its_answer(attempt: Session, pipe: Pipe, control: ControlPipe, tmp_path: Path) -> None:
    open_attempt(pipe, control, tmp_path)
    answer = {"is": ["x", 1.5, None]}
    text = base64.b64encode(encode_value(answer)).decode()

    with decided(pipe, lambda sequence: control.release(sequence, text if sequence % 3 == 2 else "")):
        assert [mqtune.ask({"what": number}) for number in range(2)] == [answer, answer]

    assert [metrics for _, metrics in pipe.reports()] == [{"what": number} for number in (0, 0, 1, 1, 1)]
    report({"loss": 1})


@pytest.mark.parametrize("told", ["stop", "pause"])
def test_in_lockstep_no_line_runs_between_the_report_that_is_stopped_and_the_stop(
    attempt: Session, pipe: Pipe, control: ControlPipe, tmp_path: Path, told: str
) -> None:
    passed: list[int] = []
    open_attempt(pipe, control, tmp_path, sync="lockstep")

    def decide(sequence: int) -> None:
        control.release(sequence) if sequence < 3 else control.tell(told)

    def train() -> None:
        for number in range(1, 10):
            report({"loss": number})
            passed.append(number)

    with decided(pipe, decide), pytest.raises(StopTrial) as stop:
        train()
    signal.raise_signal(STOP_SIGNAL)

    assert (passed, stop.value.action, len(pipe.reports())) == ([1, 2], told, 3)


def test_a_worker_that_is_gone_stops_the_trial_also_while_it_waits_in_lockstep(attempt: Session, pipe: Pipe) -> None:
    control = Pipe()
    lockstep = Session(start_message(sync="lockstep"), [pipe.write_end, control.read_end])
    with decided(pipe, lambda _: os.close(control.write_end)), pytest.raises(StopTrial):
        lockstep.report({"loss": 1})
    control.close()

    os.close(pipe.read_end)
    with pytest.raises(StopTrial):
        report({"loss": 1})


def checkpoints_of(pipe: Pipe) -> list[tuple[Any, ...]]:
    """Return the sent frames, by kind, with their names."""
    found: list[tuple[Any, ...]] = []
    for kind, body in pipe.frames():
        if kind == FRAME_CHECKPOINT:
            name, data = decode_value(body)
            found.append(("held", name, *decode_dict(data)))
        elif kind == FRAME_SAVED:
            found.append(("saved", body.decode()))
        else:
            _, metrics, *checkpoint = decode_value(body)
            found.append(("report", own_metrics(metrics), *checkpoint))
    return found


def test_a_dict_goes_before_the_report_that_names_it_with_what_it_has_counted(attempt: Session, pipe: Pipe) -> None:
    report({"loss": 3})
    report({"loss": 2}, checkpoint={"epoch": 2})
    report({"loss": 1, "training_iteration": 30}, checkpoint={"epoch": 3})

    first, held, second, held_again, third = checkpoints_of(pipe)
    assert first == ("report", {"loss": 3})
    assert held[:3] == ("held", "m-0007-2-1", {"epoch": 2})
    assert held[3]["training_iteration"] == 2
    assert held[3]["time_total_s"] > 0
    assert second == ("report", {"loss": 2}, "m-0007-2-1")
    assert held_again[1] == "m-0007-2-2"
    assert held_again[3]["training_iteration"] == 30
    assert third == ("report", {"loss": 1}, "m-0007-2-2")


@pytest.mark.parametrize(
    ("metric", "wrong", "error", "words"),
    [
        (1, 7, TypeError, "checkpoint=7 is int"),
        (1, "/no/such/folder", ConfigurationError, "'/no/such/folder' is not there"),
        (1, __file__, ConfigurationError, "is not a directory"),
        (1, {"weights": bytes(1_000_001)}, ConfigurationError, "'weights'"),
        ({1}, {"epoch": 1}, TypeError, "'loss'"),
    ],
)
def test_what_can_not_be_saved_or_reported_is_refused_in_a_trial_and_outside_and_nothing_is_sent(
    attempt: Session, pipe: Pipe, monkeypatch: pytest.MonkeyPatch, metric: Any, wrong: Any, error: Any, words: str
) -> None:
    for current in (attempt, None):
        monkeypatch.setattr(reporting, "current", current)
        with pytest.raises(error, match=words):
            report({"loss": metric}, checkpoint=wrong)

    assert pipe.frames() == []


def test_lost_checkpoints_are_errors_each_time(
    attempt: Session, pipe: Pipe, control: ControlPipe, tmp_path: Path
) -> None:
    open_store(str(tmp_path)).create()
    for checkpoint, data, error in (
        ("m-0003-1-4", None, CheckpointGone),
        ("m-0003-1-4", b"broken", CheckpointBroken),
        ("p-0003-1-4", None, CheckpointGone),
    ):
        open_attempt(pipe, control, tmp_path, store=str(tmp_path), checkpoint=checkpoint, checkpoint_data=data)
        for _ in range(2):
            with pytest.raises(error, match="0003-1-4"):
                mqtune.get_checkpoint()


def test_outside_a_trial_the_calls_do_no_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert mqtune.get_checkpoint() is None
    assert not mqtune.should_checkpoint()
    assert mqtune.get_context() == session.Context()
    mqtune.save_checkpoint({"epoch": 1})
    mqtune.save_checkpoint(tmp_path)
    with caplog.at_level(logging.INFO):
        report({"loss": 0.123456789, "epoch": 3}, checkpoint={"epoch": 1})
    with pytest.raises(TypeError, match="'loss'"):
        report({"loss": {1}})

    assert [(record.name, record.message) for record in caplog.records] == [("mqtune.report", "loss=0.123457  epoch=3")]


@pytest.mark.parametrize(
    ("error", "end", "kind"),
    [
        (StopTrial(), AttemptEnd.STOPPED, ""),
        (StopTrial("pause"), AttemptEnd.PAUSED, ""),
        (SystemExit(), AttemptEnd.COMPLETED, ""),
        (SystemExit(0), AttemptEnd.COMPLETED, ""),
        (SystemExit(3), AttemptEnd.FAILED, "SystemExit"),
        (KeyboardInterrupt(), AttemptEnd.FAILED, "KeyboardInterrupt"),
        (ValueError("no luck"), AttemptEnd.FAILED, "ValueError"),
    ],
)
def test_an_end_is_told_by_its_error(attempt: Session, error: BaseException, end: AttemptEnd, kind: str) -> None:
    def trainable(_config: dict[str, Any]) -> None:
        raise error

    assert called(trainable, attempt)[:2] == (end, kind)
