"""The uplink writes frames once and in order, and checkpoints before their reports."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from losing import set_back, snapshot
from waiting import DEADLINE_S, eventually

from mqtune.core.codec import encode_value, pack_metrics
from mqtune.core.errors import BrokerFull, BrokerUnavailable
from mqtune.core.events import START, AttemptStarted, CheckpointSaved, DecisionTaken, Reports, TrialStaged, decode_event
from mqtune.core.timing import Timing
from mqtune.core.trial import CheckpointId, Intent, TrialId
from mqtune.journal import GAP, Answer, Assignment, Claim, DriverState, Grant, MemoryJournal, MemoryServer, Segment
from mqtune.trainable import FRAME, FRAME_CHECKPOINT, FRAME_END, FRAME_REPORT, FRAME_SAVED
from mqtune.worker import READ_BYTES, Stream, Uplink


class Book(MemoryJournal):
    """A journal that notes in which order it is called, and fails when it is told to."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        super().__init__(self.server, "e")
        self.calls: list[str] = []
        self.fails: dict[str, Exception] = {}

    def _note(self, call: str, what: str) -> None:
        self.calls.append(f"{call} {what}")
        self.last_thread = threading.current_thread()
        if call in self.fails:
            raise self.fails[call]

    def report(self, segments: Sequence[Segment]) -> list[Answer]:
        self._note("report", "+".join(f"{s.claim.trial}:{s.first}-{s.first + s.size - 1}" for s in segments))
        return super().report(segments)

    def put_checkpoint(self, claim: Claim, checkpoint: CheckpointId, data: bytes) -> Answer:
        self._note("put", checkpoint)
        return super().put_checkpoint(claim, checkpoint, data)

    def saved(self, claim: Claim, events: Mapping[CheckpointId, bytes]) -> Answer:
        self._note("saved", "+".join(events))
        return super().saved(claim, events)

    def events(self) -> list[Any]:
        return [decode_event(entry.data) for entry in self.read("0-0", count=10_000)]

    def told(self) -> list[str]:
        """Return the journal's reports and checkpoints, in order."""
        found = []
        for event in self.events():
            if isinstance(event, Reports):
                found += [f"{r.trial}:{r.sequence}{' ' if r.checkpoint else ''}{r.checkpoint}" for r in event]
            elif isinstance(event, CheckpointSaved):
                found.append(f"saved {event.checkpoint}")
        return found


class Sender:
    """A trial at its end of the pipe, and the attempt's supervisor."""

    def __init__(self, book: Book, trial: str) -> None:
        self.claim = Claim(TrialId(trial), 1, "t")
        staged = TrialStaged(trial=self.claim.trial, attempt=1, config={}, at=1.0, cursor=START)
        book.stage(self.claim.trial, 1, Assignment({}), staged.encode())
        started = AttemptStarted(trial=self.claim.trial, attempt=1, worker="w", host="h", devices=[], at=1.0)
        assert isinstance(book.claim(self.claim, "w", 60, started.encode()), Grant)
        self.answers, self.noise = list[str](), list[str]()
        self.stream = Stream(book, self.claim, self)
        self.has_ended = self.is_closed = self.is_ending = self.drops_unwritten = False

    def on_answer(self, answer: str) -> None:
        self.answers.append(answer)

    def on_noise(self, what: str) -> None:
        self.noise.append(what)

    def on_end_frame(self) -> None:
        self.has_ended = True

    def frames(self, *frames: tuple[int, bytes]) -> None:
        """Send frames in one write, which the other end reads in one."""
        os.write(self.stream.write_end, b"".join(FRAME.pack(len(body), kind) + body for kind, body in frames))

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            os.close(self.stream.write_end)

    def end(self) -> None:
        """Leave nothing open."""
        self.close()
        if not self.stream.drained.is_set():
            self.stream.close()


def a_report(loss: float = 1.0, checkpoint: str = "") -> tuple[int, bytes]:
    return FRAME_REPORT, pack_metrics(1.0, {"loss": loss}, checkpoint)


def in_memory(checkpoint: str, data: bytes = b"state") -> tuple[int, bytes]:
    return FRAME_CHECKPOINT, encode_value([checkpoint, data])


def without_report(checkpoint: str) -> tuple[int, bytes]:
    return FRAME_SAVED, checkpoint.encode()


def an_end(end: str = "completed") -> tuple[int, bytes]:
    return FRAME_END, encode_value({"end": end, "error_type": "", "error": "", "heard": ""})


@pytest.fixture
def book() -> Book:
    book = Book()
    book.lock("driver", "a test", 60)
    return book


@pytest.fixture
def uplink(senders: contextlib.ExitStack) -> Iterator[Uplink]:
    with contextlib.closing(Uplink(time, Timing(full_retry_s=0.01))) as uplink:
        uplink.start()
        yield uplink


@pytest.fixture
def senders() -> Iterator[contextlib.ExitStack]:
    """Closes the senders that a test makes once the uplink is closed."""
    with contextlib.ExitStack() as made:
        yield made


@pytest.fixture
def sender(book: Book, senders: contextlib.ExitStack) -> Callable[[str], Sender]:
    def make(trial: str) -> Sender:
        one = Sender(book, trial)
        senders.callback(one.end)
        return one

    return make


CALLS = ("put", "report", "saved")
EACH_KIND = ["0001:1 m-0001-1-1.t", "saved p-0001-1-2.t"]


def send_each_kind(sender: Sender) -> None:
    sender.frames(in_memory("m-0001-1-1.t"), a_report(checkpoint="m-0001-1-1.t"), without_report("p-0001-1-2.t"))


def send_all(uplink: Uplink, *senders: Sender) -> None:
    """Have all that was sent written, as at the end of an attempt."""
    for one in senders:
        uplink.attach(one.stream)
        one.close()
    for one in senders:
        assert one.stream.drained.wait(DEADLINE_S)


def test_a_dict_is_written_before_its_report(book: Book, uplink: Uplink, sender: Callable[[str], Sender]) -> None:
    one = sender("0001")
    one.frames(a_report(), in_memory("m-0001-1-1.t", b"one"), a_report(checkpoint="m-0001-1-1.t"))
    one.frames(in_memory("m-0001-1-2.t", b"two"), a_report(checkpoint="m-0001-1-2.t"), a_report())
    send_all(uplink, one)

    assert book.calls == ["put m-0001-1-1.t", "put m-0001-1-2.t", "report 0001:1-4"]
    assert book.told() == ["0001:1", "0001:2 m-0001-1-1.t", "0001:3 m-0001-1-2.t", "0001:4"]
    assert book.checkpoint(CheckpointId("m-0001-1-2.t")) == b"two"


def test_the_rest_of_an_open_pipe_is_written(book: Book, uplink: Uplink, sender: Callable[[str], Sender]) -> None:
    one = sender("0001")
    data = os.urandom(READ_BYTES + 400_000)
    one.frames(in_memory("m-0001-1-1.t", data), a_report(checkpoint="m-0001-1-1.t"), without_report("p-0001-1-2.t"))
    uplink.attach(one.stream)

    assert uplink.detach(one.stream)

    assert book.told() == ["0001:1 m-0001-1-1.t", "saved p-0001-1-2.t"]
    assert book.checkpoint(CheckpointId("m-0001-1-1.t")) == data
    one.close()


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        ("put", ValueError("no room"), []),
        ("put", BrokerUnavailable("closing"), []),
        ("report", BrokerUnavailable("closing"), ["saved p-0001-1-2.t"]),
        ("saved", BrokerUnavailable("closing"), ["0001:1 m-0001-1-1.t"]),
    ],
)
def test_when_a_write_fails_nothing_hangs_and_nothing_is_named_that_is_not_held(
    book: Book, uplink: Uplink, sender: Callable[[str], Sender], call: str, error: Exception, told: list[str]
) -> None:
    one = sender("0001")
    book.fails[call] = error
    send_each_kind(one)
    send_all(uplink, one)

    assert one.answers == [GAP] * (call == "put")
    assert (book.checkpoint(CheckpointId("m-0001-1-1.t")) is None) == (call == "put")
    assert book.told() == told


#: Frames that are whole, and hold what no report, checkpoint or end of trial 0001's first attempt is.
FORGED: dict[str, tuple[int, bytes]] = {
    "a report that is no msgpack": (FRAME_REPORT, b"\xc1 no report at all"),
    "a report that is a number": (FRAME_REPORT, b"\x05"),
    "two reports in one frame": (FRAME_REPORT, 2 * pack_metrics(1.0, {"loss": 1.0})),
    "half a report": (FRAME_REPORT, pack_metrics(1.0, {"loss": 1.0})[:-2]),
    "a report of a text": (FRAME_REPORT, encode_value([1.0, "loss"])),
    "a report without a time": (FRAME_REPORT, encode_value(["now", {"loss": 1.0}])),
    "a report of no time": (FRAME_REPORT, encode_value([math.nan, {"loss": 1.0}])),
    "a report of the end of time": (FRAME_REPORT, encode_value([math.inf, {"loss": 1.0}])),
    "a report from before": (FRAME_REPORT, encode_value([0.5, {"loss": 1.0}])),
    "a report with a number for a name": (FRAME_REPORT, encode_value([1.0, {1: 1.0}])),
    "a report with a name that is no text": (FRAME_REPORT, encode_value([1.0, {"l": 1.0}]).replace(b"l", b"\xff")),
    "a report of lists in lists": (FRAME_REPORT, b"\x92\xcb\x3f\xf0\0\0\0\0\0\0\x81\xa1a" + b"\x91" * 1015 + b"\x01"),
    "a report of four things": (FRAME_REPORT, encode_value([1.0, {"loss": 1.0}, "m-0001-1-1.t", 1])),
    "a report with a number for a checkpoint": (FRAME_REPORT, encode_value([1.0, {"loss": 1.0}, 1])),
    "a report with another trial's checkpoint": a_report(checkpoint="m-0002-1-1.t"),
    "a report with a later attempt's checkpoint": a_report(checkpoint="p-0001-2-1.t"),
    "another trial's next checkpoint": in_memory("m-0002-1-1.t"),
    "a later attempt's checkpoint": in_memory("m-0001-2-1.t"),
    "a checkpoint of no number": in_memory("m-0001-1-0.t"),
    "a checkpoint of a name like it": in_memory("m-0001-1-01.t"),
    "a checkpoint in memory that is none": in_memory("p-0001-1-1.t"),
    "a checkpoint that is too large": in_memory("m-0001-1-1.t", bytes(1_000_200)),
    "that another trial has saved one": without_report("p-0002-1-1.t"),
    "an end that is none": (FRAME_END, b"\xc1"),
    "an end that only a worker can tell": an_end("lost"),
}


@pytest.mark.parametrize("what", FORGED)
def test_foreign_frames_are_not_written(book: Book, uplink: Uplink, sender: Callable[[str], Sender], what: str) -> None:
    one, victim = sender("0001"), sender("0002")
    before = [a_report(), a_report(), in_memory("m-0001-1-9.t", b"mine"), a_report(checkpoint="m-0001-1-9.t")]
    kind, body = FORGED[what]
    uplink.attach(one.stream)
    threading.Thread(target=lambda: one.frames(*before, (kind, body), a_report(2.0)), daemon=True).start()

    assert one.stream.drained.wait(DEADLINE_S), "its pipe is closed, so that it can't go on writing"
    assert len(one.noise) == 1
    victim.frames(in_memory("m-0002-1-1.t", b"the victim's"), a_report(checkpoint="m-0002-1-1.t"))
    send_all(uplink, victim)

    assert book.told() == ["0001:1", "0001:2", "0001:3 m-0001-1-9.t", "0002:1 m-0002-1-1.t"]
    assert book.checkpoint(CheckpointId("m-0002-1-1.t")) == b"the victim's"
    assert book.checkpoints() == {"m-0001-1-9.t", "m-0002-1-1.t"}
    assert victim.noise == []
    assert one.answers == []


@pytest.mark.parametrize("is_drained", [False, True])
def test_what_a_server_has_lost_last_is_written_again_and_what_it_has_is_not_doubled(
    book: Book, uplink: Uplink, sender: Callable[[str], Sender], is_drained: bool
) -> None:
    one = sender("0001")
    one.frames(a_report())
    uplink.attach(one.stream)
    eventually(lambda: book.told() == ["0001:1"])
    before = snapshot(book.server)
    one.frames(in_memory("m-0001-1-1.t"), a_report(checkpoint="m-0001-1-1.t"))
    all_of_it = ["0001:1", "0001:2 m-0001-1-1.t"]
    eventually(lambda: book.told() == all_of_it)
    if is_drained:
        one.close()
        assert one.stream.drained.wait(DEADLINE_S)
    assert not one.stream.may_be_lost

    set_back(book.server, before)
    book.outages += 1
    assert one.stream.may_be_lost
    uplink.write_again(one.stream)

    eventually(lambda: book.told() == all_of_it)
    # After a drained stream, the attempt's end follows immediately.
    assert (book.last_thread is threading.current_thread()) == is_drained
    assert book.checkpoint(CheckpointId("m-0001-1-1.t")) == b"state"
    assert not one.stream.may_be_lost
    calls = len(book.calls)
    uplink.write_again(one.stream)
    eventually(lambda: len(book.calls) == calls + 2)
    assert book.told() == all_of_it
    assert one.answers == []


def test_a_stream_in_doubt_again_after_each_write_is_carried_to_its_end(
    book: Book, uplink: Uplink, sender: Callable[[str], Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sender("0001")
    one.frames(a_report())
    uplink.attach(one.stream)
    eventually(lambda: book.told() == ["0001:1"])
    write = book.report

    def write_during_an_outage(segments: Sequence[Segment]) -> list[Answer]:
        answers = write(segments)
        book.outages += 1
        if not one.stream.drained.is_set():
            # As with the next heartbeat, which a write on a starved machine outlasts.
            uplink.write_again(one.stream)
        return answers

    monkeypatch.setattr(book, "report", write_during_an_outage)
    book.outages += 1
    uplink.write_again(one.stream)
    one.frames(a_report())
    one.close()

    assert one.stream.drained.wait(DEADLINE_S)
    assert book.told() == ["0001:1", "0001:2"]


@pytest.mark.parametrize("how", ["it has ended", "it is to end", "it is told to end"])
def test_an_ending_attempt_writes_its_all(
    book: Book, uplink: Uplink, sender: Callable[[str], Sender], how: str
) -> None:
    one = sender("0001")
    uplink.attach(one.stream)
    book.heartbeat("driver", 60, DriverState(most_bytes=1))
    one.frames(a_report())
    eventually(lambda: one.stream.is_held)
    one.frames(a_report(), a_report())
    assert book.told() == ["0001:1"]

    if how == "it has ended":
        one.frames(an_end())
        assert uplink.detach(one.stream)
        assert one.has_ended
    elif how == "it is to end":
        one.is_ending = True
        uplink.write_again(one.stream)
    else:
        trial, stop = one.claim.trial, {"action": "stop", "sequence": 1, "intent": Intent.STOP, "reason": ""}
        decision = DecisionTaken(trial=trial, attempt=1, by="user", at=2.0, cursor=START, **stop)
        book.intend(trial, 1, Intent.STOP, decision.encode(), b"")
        uplink.write_again(one.stream)

    eventually(lambda: book.told() == ["0001:1", "0001:2", "0001:3"])
    assert one.stream.sequence == 3


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", ["it runs", "it has ended"])
def test_what_a_full_server_refuses_is_written_once_there_is_room_and_other_experiments_go_on(
    book: Book, uplink: Uplink, sender: Callable[[str], Sender], caplog: pytest.LogCaptureFixture, call: str, how: str
) -> None:
    one, other_book = sender("0001"), Book()
    other_book.lock("driver", "a test", 60)
    other = Sender(other_book, "0001")
    book.fails[call] = BrokerFull("Redis is full")
    uplink.attach(one.stream)
    uplink.attach(other.stream)
    send_each_kind(one)
    eventually(lambda: sum(each.startswith(call) for each in book.calls) > 1)
    one.frames(a_report())
    if how == "it has ended":
        one.frames(an_end())
        one.close()
        one.is_ending = True
    other.frames(a_report())
    eventually(other_book.told)
    other.close()

    del book.fails[call]

    eventually(lambda: book.told() == [*EACH_KIND, "0001:2"])
    assert one.answers == []
    assert (one.stream.sequence, one.stream.dropped) == (2, 0)
    assert one.stream.waited_s > 0 == other.stream.waited_s
    assert caplog.text.count("Redis is full") == 1
    one.close()
    assert one.stream.drained.wait(DEADLINE_S)


@pytest.mark.parametrize("call", CALLS)
def test_an_ordered_end_drops_and_counts(
    book: Book, uplink: Uplink, sender: Callable[[str], Sender], call: str
) -> None:
    one = sender("0001")
    book.fails[call] = BrokerFull("Redis is full")
    uplink.attach(one.stream)
    send_each_kind(one)
    eventually(lambda: one.stream.is_held)

    one.drops_unwritten = one.is_ending = True
    uplink.write_again(one.stream)
    eventually(lambda: not one.stream.is_held)
    del book.fails[call]
    one.frames(a_report(), a_report(), an_end())
    assert uplink.detach(one.stream)

    assert one.has_ended
    # With a hole in them no later ones can be taken.
    assert book.told() == (EACH_KIND[:1] if call == "saved" else [])
    assert (one.stream.sequence, one.stream.dropped) == ((1, 2) if call == "saved" else (0, 3))
    assert not one.stream.is_in_doubt
    assert one.stream.waited_s > 0


def test_a_flooding_trial_delays_no_other(book: Book, sender: Callable[[str], Sender]) -> None:
    flooding, quiet = sender("0001"), sender("0002")
    parts = [frame for number in range(1, 500) for frame in (a_report(), without_report(f"p-0001-1-{number}.t"))]
    flooding.frames(*parts)
    quiet.frames(a_report())
    with contextlib.closing(Uplink(time)) as uplink:
        for one in (flooding, quiet):
            uplink.attach(one.stream)
        ends = [threading.Thread(target=uplink.detach, args=(one.stream,)) for one in (flooding, quiet)]
        for end in ends:
            end.start()
        uplink.start()
        for end in ends:
            end.join(DEADLINE_S)

    assert any("0002" in call for call in book.calls[:4])
    assert [name for name in book.told() if "0002" not in name] == [
        name for number in range(1, 500) for name in (f"0001:{number}", f"saved p-0001-1-{number}.t")
    ]
