"""What comes from outside is any bytes at all: each decoder gives a value of the right shape, or the error that it documents."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
from attempts import start_message
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from mqtune.checkpoints import decode_dict
from mqtune.checkpoints.manifest import Manifest
from mqtune.core.codec import decode_value, encode_value, pack_metrics
from mqtune.core.errors import (
    CheckpointBroken,
    CheckpointVersionError,
    InvalidTransition,
    MessageVersionError,
    TrainableNotFound,
)
from mqtune.core.events import START, AttemptStarted, Reports, TrialStaged, decode_event
from mqtune.core.experiment import Experiment
from mqtune.core.trial import CheckpointId, TrialId
from mqtune.core.worker_info import WorkerInfo
from mqtune.journal import Assignment, Claim, Fleet
from mqtune.trainable import FRAME, Channel, Session, TrainableSpec
from mqtune.worker import Stream, Uplink

WIRE: Final = Path(__file__).parents[1] / "wire"
#: Real messages of every kind, which are cut, changed and extended below.
MESSAGES: Final = {path.name: path.read_bytes() for path in sorted(WIRE.glob("*.msgpack"))}
TRIAL: Final = TrialId("0001")

texts = st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A real message with a few bytes cut, changed or put in."""
    data = bytearray(draw(st.sampled_from(list(MESSAGES.values()))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["cut", "change", "insert"]))
        if how == "cut":
            del data[at:]
        elif how == "insert":
            data[at:at] = draw(st.binary(max_size=4))
        elif at < len(data):
            data[at] = draw(st.integers(0, 255))
    return bytes(data)


def replaced(value: Any, path: list[int], by: Any) -> Any:
    """A value with one of its parts, or of theirs, replaced; or dropped, for ``...``."""
    if not path or not isinstance(value, list | dict) or not value:
        return by
    where = path[0] % len(value)
    if isinstance(value, dict):
        key = list(value)[where]
        rest = {k: v for k, v in value.items() if k != key}
        found = replaced(value[key], path[1:], by)
        return rest if found is ... else {**rest, key: found}
    found = replaced(value[where], path[1:], by)
    return [*value[:where], *([] if found is ... else [found]), *value[where + 1 :]]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A real message in which a field is missing, or has a value of any type; it is msgpack."""
    value = decode_value(draw(st.sampled_from(list(MESSAGES.values()))))
    path = draw(st.lists(st.integers(0, 20), min_size=1, max_size=5))
    return encode_value(replaced(value, path, draw(values | st.just(...))))


#: Bytes of all kinds: noise, msgpack of anything, and real messages that were damaged in both ways.
anything = st.binary(max_size=200) | values.map(encode_value) | mangled() | mutated()


def the_event(data: bytes) -> Any:
    event = decode_event(data)
    # A batch is cut into reports when they are used; what is decoded is looked up by these.
    for each in event if isinstance(event, Reports) else [event]:
        hash(tuple(getattr(each, name, None) for name in ("cursor", "trial", "attempt", "sequence", "checkpoint")))
    return event


def the_control_records(data: bytes) -> Session:
    read, write = os.pipe()
    try:
        os.set_blocking(read, False)
        os.write(write, data)
        session = Session(start_message(), [-1, read])
        # It looks into its pipe.
        assert session.is_save_wanted() in (True, False)
    finally:
        os.close(read)
        os.close(write)
    return session


class OneMessage:
    """A server whose queues have one message each."""

    def __init__(self, message: bytes) -> None:
        self._answers = [[message]]

    def get_connection_kwargs(self) -> dict[str, Any]:
        return {}

    def pipeline(self, *, transaction: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext(self)

    def lrange(self, *_: object) -> None: ...

    def execute(self) -> list[list[bytes]]:
        return self._answers


def the_headers(data: bytes) -> object:
    return Fleet(OneMessage(data), patience_s=0.0).queued("q")  # type: ignore[arg-type]


DECODERS: Final[dict[str, tuple[Callable[[bytes], Any], tuple[type[Exception], ...]]]] = {
    "value": (decode_value, (ValueError,)),
    "event": (the_event, (MessageVersionError,)),
    "worker": (WorkerInfo.decode, (MessageVersionError,)),
    "assignment": (Assignment.decode, (MessageVersionError,)),
    "checkpoint": (decode_dict, (CheckpointBroken, CheckpointVersionError)),
    "manifest": (lambda data: Manifest.decode(data, CheckpointId("c"), ""), (CheckpointBroken, CheckpointVersionError)),
    "queue": (the_headers, ()),
    "control": (the_control_records, ()),
}


@pytest.mark.parametrize("name", DECODERS)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=anything)
def test_any_bytes_give_a_value_or_the_error_that_is_documented(name: str, data: bytes):
    decode, errors = DECODERS[name]

    with contextlib.suppress(*errors):
        decode(data)


@given(data=mutated())
def test_a_worker_whose_description_is_believed_has_fields_of_the_right_types(data: bytes):
    usual = WorkerInfo.decode(MESSAGES["worker.v1.msgpack"])
    try:
        found = WorkerInfo.decode(data)
    except MessageVersionError:
        return

    for name in WorkerInfo.__slots__:
        is_number = WorkerInfo.__annotations__[name] == "Number"
        assert isinstance(getattr(found, name), int | float if is_number else type(getattr(usual, name))), name
    assert all(isinstance(each, str) for each in [*found.devices, *found.tags])


@pytest.mark.parametrize("wrong", [[5], ["a", None], "text", {"a": 1}, None, [["a"]]])
def test_lists_of_texts_hold_nothing_else(wrong: Any):
    version, body = decode_value(MESSAGES["worker.v1.msgpack"])
    for field in ("devices", "tags"):
        with pytest.raises(MessageVersionError, match=field):
            WorkerInfo.decode(encode_value([version, {**body, field: wrong}]))
    for name, field in (("started.v1.msgpack", "devices"), ("dropped.v1.msgpack", "checkpoints")):
        version, kind, body = decode_value(MESSAGES[name])
        with pytest.raises(MessageVersionError, match=field):
            decode_event(encode_value([version, kind, {**body, field: wrong}]))


@given(values_=st.dictionaries(st.sampled_from(["name", "module", "script", "kind"]), values, max_size=4))
def test_any_fields_name_a_trainable_of_texts_or_none(values_: dict[str, Any]):
    try:
        spec = TrainableSpec.decode(values_)
    except TrainableNotFound:
        return

    assert all("\0" not in each for each in (spec.name, spec.module, spec.script))
    with contextlib.suppress(TrainableNotFound):
        spec.locate(Path("/nowhere"))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=mutated(), trial=st.sampled_from(["0001", "0002", ""]), attempt=st.integers(0, 3))
def test_an_event_that_can_not_be_is_a_clear_error_of_the_fold(data: bytes, trial: str, attempt: int):
    value = decode_value(data)
    assume(isinstance(value, list) and len(value) == 3)
    version, kind, body = value
    if isinstance(body, dict) and "trial" in body:
        body = {**body, "trial": trial, **({"attempt": attempt} if "attempt" in body else {})}
    try:
        event = decode_event(encode_value([version, kind, body]))
    except MessageVersionError:
        return
    experiment = Experiment("e", metric="loss", mode="min")
    experiment.apply(TrialStaged(trial=TRIAL, attempt=1, config={}, at=1.0, cursor=START))
    experiment.apply(AttemptStarted(trial=TRIAL, attempt=1, worker="w", host="h", devices=[], at=2.0))

    with contextlib.suppress(InvalidTransition):
        if event is not None:
            experiment.apply(event)

    assert experiment.trials.keys() <= {"0001", "0002", ""}
    assert experiment.live >= 0


#: Longer than this, nobody would wait; a byte that is read and found wrong takes no measurable time.
CLAIMS: Final = {
    "a list of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a map of 4 billion": b"\xdf\xff\xff\xff\xff",
    "a text of 4 GB": b"\xdb\xff\xff\xff\xff",
    "bytes of 4 GB": b"\xc6\xff\xff\xff\xff",
    "an extension of 4 GB": b"\xc9\xff\xff\xff\xff\x01",
    "10,000 lists in each other": b"\x91" * 10_000 + b"\x01",
    "10,000 maps in each other": b"\x81\xa1k" * 10_000 + b"\x01",
    "500 lists, each of as many as there are bytes": (b"\xdd" + struct.pack(">I", 2_500)) * 500,
    "a key that is a list": b"\x81\x91\x01\x01",
    "a timestamp of 3 bytes": b"\xc7\x03\xff\x00\x00\x00",
    "JSON, 100,000 lists in each other": b"[" * 100_000,
    "JSON, 900 lists in each other": b'{"version": 1, "sha256": "", "checkpoint": ' + b"[" * 900 + b"]" * 900 + b"}",
    "JSON, a number of 10,000 digits": b'{"version": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("name", [name for name in DECODERS if name != "control"])
def test_what_claims_to_be_much_takes_neither_time_nor_memory(name: str, claim: str):
    decode, errors = DECODERS[name]
    wrapped = [CLAIMS[claim], b"\x93\x01\xa5ended" + CLAIMS[claim], b"\x92\x01" + CLAIMS[claim]]

    for data in wrapped:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with contextlib.suppress(*errors):
            decode(data)
        # It takes no memory as though the claim were true.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_a_checkpoint_whose_checksum_is_right_and_whose_content_is_not_is_broken():
    for body in (b"\xc1", encode_value([1, 2, 3]), encode_value([[], {}]), encode_value({})):
        with pytest.raises(CheckpointBroken):
            decode_dict(encode_value([1, zlib.crc32(body), body]))


def stream_of(journal: Mock, ear: Mock) -> Stream:
    return Stream(journal, Claim(TRIAL, 1, "token"), ear)


def new_ear() -> Mock:
    """Return what hears what a stream is told."""
    return Mock(is_ending=False, drops_unwritten=False)


def new_journal() -> Mock:
    """Return a journal that takes everything."""
    journal = Mock(experiment="e", outages=0, **{"put_checkpoint.return_value": "", "saved.return_value": ""})
    journal.report.side_effect = lambda segments: [""] * len(segments)
    return journal


def reports_in(journal: Mock) -> int:
    return sum(segment.size for call in journal.report.call_args_list for segment in call.args[0])


GOOD: Final = pack_metrics(1.0, {"loss": 1.0})
#: What no trial of mqtune sends.
NOISE: Final = {
    "a frame of 4 GB": FRAME.pack(2**32 - 1, 1) + b"x",
    "a frame of no kind": FRAME.pack(3, 200) + b"abc",
    "a report that is too short": FRAME.pack(1, 1) + b"\x92",
    "a checkpoint that is none": FRAME.pack(3, 3) + b"\xc1\xc1\xc1",
    "a checkpoint without bytes": FRAME.pack(3, 3) + encode_value(["c", 1])[:3].ljust(3, b"\0"),
    "a name that is no text": FRAME.pack(2, 4) + b"\xff\xff",
}


@pytest.mark.parametrize("noise", NOISE)
def test_a_trial_that_sends_noise_ends_and_the_others_of_its_worker_go_on(noise: str):
    bad, good, journal = new_ear(), new_ear(), new_journal()
    with contextlib.closing(Uplink(time)) as carrier:
        carrier.start()
        noisy, quiet = stream_of(journal, bad), stream_of(journal, good)
        carrier.attach(noisy)
        carrier.attach(quiet)
        os.write(noisy.write_end, FRAME.pack(len(GOOD), 1) + GOOD + NOISE[noise])
        assert noisy.drained.wait(30), "its pipe is closed, so that it can't go on writing"
        bad.on_noise.assert_called_once()
        assert reports_in(journal) == 1, "what came whole before it is kept"
        os.close(noisy.write_end)

        os.write(quiet.write_end, FRAME.pack(len(GOOD), 1) + GOOD)
        os.close(quiet.write_end)
        assert quiet.drained.wait(30)
    good.on_noise.assert_not_called()
    good.on_answer.assert_not_called()
    assert reports_in(journal) == 2


@given(data=st.binary(max_size=300), at=st.integers(0, 40))
def test_any_bytes_on_a_pipe_are_frames_or_end_the_stream(data: bytes, at: int):
    stream = stream_of(new_journal(), new_ear())
    frames = FRAME.pack(len(GOOD), 1) + GOOD
    try:
        os.write(stream.write_end, frames[:at] + data)
        os.close(stream.write_end)
        while not stream.is_over:
            stream.read()
    finally:
        stream.close()


@given(data=anything)
def test_any_bytes_on_a_channel_are_a_message_or_its_end(data: bytes):
    ours, other = socket.socketpair()
    theirs = Channel(other)
    try:
        ours.sendall(struct.pack("<I", len(data)) + data)
        ours.shutdown(socket.SHUT_WR)
        received = theirs.receive()
    finally:
        ours.close()
        theirs.close()

    assert received is None or isinstance(received[0], dict)
