from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waiting import DEADLINE_S, eventually

import mqtune
from mqtune.messages import decode_value, encode_value
from mqtune.trainable import process, session
from mqtune.trainable.session import FRAME, FRAME_END, FRAME_REPORT, STOP_SIGNAL, Session, StopTrial, report
from mqtune.trial import AttemptEnd


class Pipe:
    """A trial's pipe, as its worker has it."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self._data = b""

    def shrink(self) -> None:
        """Make it as small as the system allows."""
        fcntl.fcntl(self.write_end, getattr(fcntl, "F_SETPIPE_SZ", 1031), 1)

    def is_full(self) -> bool:
        return not select.select([], [self.write_end], [], 0)[1]

    def drain(self) -> bytes:
        """Take what is there."""
        os.set_blocking(self.read_end, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.read_end, 2**16):
                self._data += data
        return self._data

    def frames(self) -> list[tuple[int, bytes]]:
        """All that was sent; it must be whole frames."""
        data, found = self.drain(), []
        while data:
            length, kind = FRAME.unpack_from(data)
            assert len(data) >= FRAME.size + length, "half a frame"
            found.append((kind, data[FRAME.size : FRAME.size + length]))
            data = data[FRAME.size + length :]
        return found

    def reports(self) -> list[tuple[float, dict[str, Any]]]:
        return [tuple(decode_value(body)) for kind, body in self.frames() if kind == FRAME_REPORT]

    def close(self) -> None:
        for fd in (self.read_end, self.write_end):
            with contextlib.suppress(OSError):
                os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture
def trial(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> Session:
    """This process is a trial."""
    current = Session()
    current.open(pipe.write_end)
    monkeypatch.setattr(session, "current", current)
    return current


@pytest.fixture
def stoppable(trial: Session) -> Iterator[Session]:
    """This process is a trial and heeds the stop signal."""
    before = signal.signal(STOP_SIGNAL, trial.tell)
    yield trial
    signal.signal(STOP_SIGNAL, before)


class SteppingClock:
    """The machine's clock, which may step back."""

    def __init__(self, *times: float) -> None:
        self._times = list(times)

    def time(self) -> float:
        return self._times.pop(0)


# Reporting.


def test_reports_are_frames_in_the_order_in_which_they_were_made(trial: Session, pipe: Pipe) -> None:
    for number in range(5):
        mqtune.report({"loss": number / 2, "note": "ü", "nested": {"a": [number, None]}})

    assert [kind for kind, _ in pipe.frames()] == [FRAME_REPORT] * 5
    assert [metrics for _, metrics in pipe.reports()] == [
        {"loss": number / 2, "note": "ü", "nested": {"a": [number, None]}} for number in range(5)
    ]


def test_the_end_is_a_frame_of_its_own_behind_all_reports(trial: Session, pipe: Pipe) -> None:
    report({"loss": 1})
    trial.end(b"how it ended")

    assert [kind for kind, _ in pipe.frames()] == [FRAME_REPORT, FRAME_END]
    assert pipe.frames()[-1] == (FRAME_END, b"how it ended")


def test_times_never_go_back_even_when_the_clock_does(
    trial: Session, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "time", SteppingClock(100.0, 105.0, 90.0, 104.9, 106.5))

    for _ in range(5):
        report({"loss": 1})

    assert [at for at, _ in pipe.reports()] == [100.0, 105.0, 105.0, 105.0, 106.5]


def test_times_never_go_back_behind_an_earlier_attempt_on_another_machine(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "time", SteppingClock(100.0, 205.0))
    current = Session()
    current.open(pipe.write_end, 200.0)

    current.report({"loss": 1})
    current.report({"loss": 1})

    assert [at for at, _ in pipe.reports()] == [200.0, 205.0]


def test_a_report_that_can_not_be_sent_sends_nothing_and_the_next_one_is_fine(trial: Session, pipe: Pipe) -> None:
    for wrong in ({"loss": {1}}, {1: 2}, None, {"loss": object()}):
        with pytest.raises(TypeError, match="report: "):
            report(wrong)  # type: ignore[arg-type]

    report({"loss": 1})

    assert [metrics for _, metrics in pipe.reports()] == [{"loss": 1}]


def test_a_report_that_is_too_large_is_refused_with_its_size(
    trial: Session, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_MAX_FRAME_BYTES", 2**20)

    with pytest.raises(TypeError, match="3 MiB of metrics in one report; the most is 1 MiB"):
        report({"raw": bytes(3 * 2**20)})

    assert pipe.frames() == []


def test_nan_and_infinity_are_sent_as_they_are(trial: Session, pipe: Pipe) -> None:
    report({"a": math.nan, "b": math.inf})

    assert repr(pipe.reports()[0][1]) == "{'a': nan, 'b': inf}"


def test_reports_from_threads_are_whole_and_each_is_sent_once(trial: Session, pipe: Pipe) -> None:
    def work(thread: int) -> None:
        for number in range(50):
            report({"thread": thread, "n": number})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    found = pipe.reports()
    assert len(found) == 400
    assert [at for at, _ in found] == sorted(at for at, _ in found)
    for thread in range(8):
        assert [metrics["n"] for _, metrics in found if metrics["thread"] == thread] == list(range(50))


def test_a_full_pipe_makes_report_wait_and_loses_nothing(trial: Session, pipe: Pipe) -> None:
    pipe.shrink()
    sent = threading.Event()

    def work() -> None:
        for number in range(100):
            report({"n": number, "filler": "x" * 500})
        sent.set()

    thread = threading.Thread(target=work)
    thread.start()
    eventually(pipe.is_full)
    assert not sent.is_set()
    eventually(lambda: [pipe.drain(), sent.is_set()][1])
    thread.join(DEADLINE_S)

    assert [metrics["n"] for _, metrics in pipe.reports()] == list(range(100))


def test_a_report_larger_than_the_pipe_arrives_whole(trial: Session, pipe: Pipe) -> None:
    pipe.shrink()
    thread = threading.Thread(target=lambda: report({"raw": bytes(10**6)}))
    thread.start()
    eventually(lambda: [pipe.drain(), not thread.is_alive()][1])

    assert [metrics for _, metrics in pipe.reports()] == [{"raw": bytes(10**6)}]


def test_a_worker_that_is_gone_stops_the_trial(trial: Session, pipe: Pipe) -> None:
    os.close(pipe.read_end)

    with pytest.raises(StopTrial):
        report({"loss": 1})


def test_a_forked_child_may_not_report(trial: Session, pipe: Pipe) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            report({"loss": 1})
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert answer.read() == "report: this is a child process of the trial; report from the trial's own process"

    report({"loss": 2})
    assert [metrics for _, metrics in pipe.reports()] == [{"loss": 2}]


# Being told to stop.


def test_the_stop_signal_raises_where_the_trial_is(stoppable: Session, pipe: Pipe) -> None:
    report({"loss": 1})

    with pytest.raises(StopTrial):
        signal.raise_signal(STOP_SIGNAL)

    assert len(pipe.reports()) == 1


def test_stop_trial_is_not_caught_with_the_users_errors() -> None:
    assert not issubclass(StopTrial, Exception)
    assert mqtune.StopTrial is StopTrial


def test_each_report_after_being_told_raises_again_and_sends_nothing(stoppable: Session, pipe: Pipe) -> None:
    with pytest.raises(StopTrial):
        signal.raise_signal(STOP_SIGNAL)

    for _ in range(3):
        with pytest.raises(StopTrial):
            report({"loss": 1})
    raised = in_thread(lambda: report({"loss": 1}))

    assert raised == [StopTrial]
    assert pipe.frames() == []


def in_thread(call: Callable[[], None]) -> list[type[BaseException]]:
    raised: list[type[BaseException]] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(DEADLINE_S)
    return raised


def signal_when_full(pipe: Pipe, then: Callable[[], object] = lambda: None) -> threading.Thread:
    """Once the pipe is full and the main thread waits, send the stop signal to it, and later take what is there."""
    main = threading.main_thread().ident
    assert main is not None

    def run() -> None:
        eventually(pipe.is_full)
        then()
        signal.pthread_kill(main, STOP_SIGNAL)
        while not over.wait(0.001):
            pipe.drain()

    over = threading.Event()
    thread = threading.Thread(target=run)
    thread.over = over  # type: ignore[attr-defined]
    thread.start()
    return thread


def finish(thread: threading.Thread) -> None:
    thread.over.set()  # type: ignore[attr-defined]
    thread.join(DEADLINE_S)


def test_a_signal_in_the_middle_of_a_frame_is_heeded_when_the_frame_is_whole(stoppable: Session, pipe: Pipe) -> None:
    pipe.shrink()
    teller = signal_when_full(pipe)

    with pytest.raises(StopTrial):
        report({"raw": bytes(200_000)})
    finish(teller)

    assert [metrics for _, metrics in pipe.reports()] == [{"raw": bytes(200_000)}]


def test_a_signal_in_the_middle_of_a_frame_does_not_tear_it_while_another_thread_reports_too(
    stoppable: Session, pipe: Pipe
) -> None:
    pipe.shrink()
    lock = stoppable._lock = CountingLock()  # type: ignore[assignment]
    other = threading.Thread(target=lambda: in_thread(lambda: report({"other": 1})))

    def other_waits_too() -> None:
        other.start()
        eventually(lambda: lock.asked == 2)

    teller = signal_when_full(pipe, other_waits_too)

    with pytest.raises(StopTrial):
        report({"raw": bytes(200_000)})
    other.join(DEADLINE_S)
    finish(teller)

    assert pipe.reports()[0][1] == {"raw": bytes(200_000)}


class CountingLock:
    """A lock that says how often it was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked = 0

    def __enter__(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_thread_that_reports_does_not_keep_the_main_thread_from_being_stopped(stoppable: Session, pipe: Pipe) -> None:
    """The main thread computes while a helper's report waits for room."""
    pipe.shrink()
    raised: list[type[BaseException]] = []
    helper = threading.Thread(target=lambda: raised.extend(in_thread(lambda: report({"raw": bytes(200_000)}))))
    helper.start()
    eventually(pipe.is_full)

    with pytest.raises(StopTrial):
        signal.raise_signal(STOP_SIGNAL)

    eventually(lambda: [pipe.drain(), not helper.is_alive()][1])
    assert raised == [StopTrial]
    assert [metrics for _, metrics in pipe.reports()] == [{"raw": bytes(200_000)}]


def test_a_flood_of_reports_and_signals_leaves_only_whole_frames(stoppable: Session, pipe: Pipe) -> None:
    main = threading.main_thread().ident
    assert main is not None
    pipe.shrink()
    over = threading.Event()

    def pester() -> None:
        while not over.wait(0.0005):
            pipe.drain()
            signal.pthread_kill(main, STOP_SIGNAL)

    thread = threading.Thread(target=pester)
    stopped = 0
    sent = 0
    try:
        thread.start()
        while stopped < 100:
            try:
                stoppable._told = False
                report({"n": sent, "filler": "x" * 3000})
            except StopTrial:
                stopped += 1
            sent += 1
    except StopTrial:
        pass
    finally:
        signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        over.set()
        thread.join(DEADLINE_S)

    numbers = [metrics["n"] for _, metrics in pipe.reports()]
    assert stopped
    assert numbers == sorted(set(numbers))


def test_the_lock_is_free_after_a_stop_so_that_the_end_can_be_sent(stoppable: Session, pipe: Pipe) -> None:
    pipe.shrink()
    teller = signal_when_full(pipe)
    with pytest.raises(StopTrial):
        report({"raw": bytes(200_000)})
    finish(teller)

    stoppable.end(b"stopped")

    assert pipe.frames()[-1] == (FRAME_END, b"stopped")


# How a trainable ends.


def ending_of(trainable: Callable[[dict[str, Any]], Any]) -> tuple[AttemptEnd, str, str]:
    before = signal.getsignal(STOP_SIGNAL)
    try:
        return process._call(lambda: trainable, {"lr": 1})
    finally:
        signal.signal(STOP_SIGNAL, before)


def raising(error: BaseException) -> Callable[[dict[str, Any]], Any]:
    def trainable(config: dict[str, Any]) -> None:
        raise error

    return trainable


def test_a_trainable_that_returns_is_completed() -> None:
    assert ending_of(lambda config: config["lr"]) == (AttemptEnd.COMPLETED, "", "")


@pytest.mark.parametrize(
    ("error", "end", "kind"),
    [
        (StopTrial(), AttemptEnd.STOPPED, ""),
        (SystemExit(), AttemptEnd.COMPLETED, ""),
        (SystemExit(0), AttemptEnd.COMPLETED, ""),
        (SystemExit(3), AttemptEnd.FAILED, "SystemExit"),
        (KeyboardInterrupt(), AttemptEnd.FAILED, "KeyboardInterrupt"),
        (ValueError("no luck"), AttemptEnd.FAILED, "ValueError"),
    ],
)
def test_how_a_trainable_ended_is_told_by_what_it_raised(error: BaseException, end: AttemptEnd, kind: str) -> None:
    assert ending_of(raising(error))[:2] == (end, kind)


def test_an_error_is_told_as_the_traceback_of_user_code_with_its_ends() -> None:
    _, _, short = ending_of(raising(ValueError("no luck")))
    _, _, long = ending_of(raising(ValueError("x" * 10**6 + " the end")))

    assert "ValueError: no luck" in short
    assert "process.py" not in short
    assert short.startswith("Traceback")
    assert len(long) < 20_000
    assert long.startswith("Traceback")
    assert long.rstrip().endswith("the end")


def test_an_error_whose_text_is_no_unicode_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that carries the name of a file that is not UTF-8."""
    # A trial's own output takes anything.
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), errors="backslashreplace"))

    ended = ending_of(raising(ValueError("can't read data-\udcff.bin")))

    assert b"can't read data-" in encode_value({"error": ended[2]})


# Outside a trial.


def test_outside_a_trial_a_report_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        report({"loss": 0.123456789, "epoch": 3})

    assert [(record.name, record.message) for record in caplog.records] == [("mqtune.report", "loss=0.123457  epoch=3")]


def test_outside_a_trial_a_report_that_could_not_be_sent_is_an_error_all_the_same() -> None:
    with pytest.raises(TypeError, match="'loss'"):
        report({"loss": {1}})


def test_a_plain_script_shows_its_reports_without_setting_up_logging() -> None:
    code = "import mqtune; mqtune.report({'loss': 0.5}); mqtune.report({'loss': 0.25})"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr.splitlines() == ["loss=0.5", "loss=0.25"]
