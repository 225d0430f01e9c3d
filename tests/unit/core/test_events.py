from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import struct
from collections import UserDict
from pathlib import Path
from typing import Any, get_args

import msgpack
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mqtune.core.codec import (
    MAX_REPORT_BYTES,
    REPORTS_PREFIX,
    ReportEncoder,
    decode_value,
    encode_value,
    pack_metrics,
    report_packer,
    segment_bytes,
)
from mqtune.core.errors import MessageVersionError, ReportInvalid, ReportTooLarge
from mqtune.core.events import VERSION, AttemptStarted, Event, Reports, decode_event
from mqtune.core.trial import Report, TrialId, checkpoint_id
from mqtune.core.worker_info import WorkerInfo
from mqtune.results import json_text

WIRE = Path(__file__).parents[2] / "wire"

texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats()
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
maps = st.dictionaries(texts, values, max_size=4)
trials = texts.map(TrialId)
counts = st.integers(0, 2**40)
KINDS = [kind for kind in get_args(Event) if kind is not Reports]
segments = st.lists(
    st.tuples(
        trials, counts, counts, st.lists(st.tuples(st.floats(), maps, st.just("") | texts), min_size=1, max_size=3)
    ),
    max_size=3,
)


def encode_reports(parts: list[tuple[TrialId, int, int, list[tuple[float, dict[str, Any], str]]]]) -> bytes:
    """A batch as the uplink cuts it and the report script joins it."""
    packed = [segment_bytes(t, a, n, [pack_metrics(*report) for report in rs]) for t, a, n, rs in parts]
    return REPORTS_PREFIX + b"\xdd" + len(packed).to_bytes(4, "big") + b"".join(packed)


def event_of(body: Any, kind: Any = "closed", version: Any = VERSION) -> bytes:
    return msgpack.packb([version, kind, body])


@given(parts=segments)
def test_a_batch_of_reports_comes_back_report_by_report(parts: Any) -> None:
    decoded = decode_event(encode_reports(parts))

    assert isinstance(decoded, Reports)
    expected = [Report(t, a, n + i, *report) for t, a, n, rs in parts for i, report in enumerate(rs)]
    assert repr(list(decoded)) == repr(expected)


@given(reports=st.lists(st.tuples(st.floats(), maps), min_size=1, max_size=3))
def test_reports_that_come_one_by_one_are_encoded_as_in_a_batch(reports: Any) -> None:
    encoder = ReportEncoder("0001", 2, report_packer())
    for sequence, report in enumerate(reports, 127):
        for checkpoint in ("", "0001.2.1"):
            packed = pack_metrics(*report, checkpoint)
            assert encoder.segment(sequence, *report, checkpoint) == segment_bytes("0001", 2, sequence, [packed])


@pytest.mark.parametrize("version", [0, 2, 99, "1", None, [], True, 1.0])
def test_a_version_that_is_not_known_is_a_clear_error(version: object) -> None:
    with pytest.raises(MessageVersionError, match=re.escape(f"version {version!r}; this mqtune reads version 1")):
        decode_event(event_of({}, version=version))
    with pytest.raises(MessageVersionError, match=re.escape(f"version {version!r}; this mqtune reads 1")):
        WorkerInfo.decode(encode_value([version, {}]))


def test_a_kind_that_is_not_known_is_passed_over() -> None:
    assert decode_event(event_of({"a": 1}, kind="teleported")) is None
    assert decode_event(event_of(None, kind="teleported")) is None


@pytest.mark.parametrize("changed", [{"devices": ["0", 1]}, {"attempt": 0}, {"attempt": "1"}, {"at": None}])
def test_a_body_is_checked_also_behind_a_sound_one_with_the_same_fields(changed: dict[str, Any]) -> None:
    event = AttemptStarted(trial=TrialId("0001"), attempt=1, worker="w", host="h", devices=["0"], at=1.0)
    version, kind, body = decode_value(event.encode())
    for _ in range(2):
        assert decode_event(event_of(body, kind, version)) == event
        with pytest.raises(MessageVersionError, match="broken 'started' event"):
            decode_event(event_of(body | changed, kind, version))


@given(parts=segments.filter(bool), data=st.data())
def test_of_a_truncated_batch_the_whole_reports_are_read(parts: Any, data: st.DataObject) -> None:
    whole = encode_reports(parts)
    expected = [Report(t, a, n + i, *report) for t, a, n, rs in parts for i, report in enumerate(rs)]

    event = decode_event(whole[: data.draw(st.integers(len(REPORTS_PREFIX), len(whole) - 1))])

    assert isinstance(event, Reports)
    found = list(event)
    assert repr(found) == repr(expected[: len(found)])
    assert event.unreadable > 0
    last = decode_event(whole[:-1])
    assert isinstance(last, Reports)
    assert (repr(list(last)), last.unreadable) == (repr(expected[:-1]), 1)


def test_an_int_in_a_field_of_floats_stays_one() -> None:
    version, kind, body = decode_value(WIRE.joinpath("staged_from_checkpoint.v1.msgpack").read_bytes())
    data = event_of(body | {"at": 3, "ttl_s": 60, "resources": {"gpus": 1, "gpu_memory_gb": 24}}, kind, version)

    event: Any = decode_event(data)

    assert (type(event.at), type(event.timeout_s), type(event.resources.gpus)) == (int, int, int)
    assert decode_value(event.encode())[2]["resources"] | {"at": 3} == {
        "gpus": 1, "cpus": 1, "gpu_memory_gb": 24, "tags": [], "at": 3
    }  # fmt: skip
    assert [type(decode_value(event.encode())[2][name]) for name in ("at", "ttl_s")] == [int, int]


def test_a_value_of_another_type_is_not_encoded() -> None:
    event = AttemptStarted(trial=TrialId("0001"), attempt=0, worker="w", host="h", devices=["0"], at=1.0)

    with pytest.raises(TypeError, match="attempt=0: Expected `int` >= 1"):
        event.encode()


GOOD = ["0001", 1, 1, [[1.0, {"loss": 1}]]]


@pytest.mark.parametrize(
    "body",
    [
        *(None, "abcd", {("0001", 1, 1, ()): 1}, [GOOD, None], [["0001", 1, 1]], [[*GOOD, 5]]),
        *([[*head, []]] for head in ((["0001"], 1, 1), ("0001", "1", 1), ("0001", 1, None))),
        [["0001", 1, 1, {}]],
        *([["0001", 1, 1, [report]]] for report in (5, [1.0], {"loss": 1.0}, [1.0, {}, 3], [1.0, [1]], ["now", {}])),
        [["0001", 1, 1, [[1.0, {}, "p-0001-1-1", 4]]]],
    ],
    ids=repr,
)
def test_what_is_no_report_is_left_out_of_a_batch_and_counted(body: Any, caplog: pytest.LogCaptureFixture) -> None:
    event = decode_event(event_of(body, "reports"), "7-0")

    assert isinstance(event, Reports)
    assert list(event) == ([("0001", 1, 1, 1.0, {"loss": 1}, "")] if isinstance(body, list) and GOOD in body else [])
    assert event.unreadable == 1
    assert "entry 7-0 of the journal has 1 report that can't be read" in caplog.text


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *(
            ("staged", {"trial": 1}),
            ("staged", {"attempt": "1"}),
            ("staged", {"config": [1]}),
            ("staged", {"ttl_s": "1 h"}),
        ),
        *(("staged", {"cursor": cursor}) for cursor in (["1-0", "1"], [f"{'9' * 30}-0", 1], [{}, []])),
        *(("decided", {"restart": restart}) for restart in (None, {"checkpoint": "m-1"}, {"config": {}, "source": 3})),
        *(("decided", {"intent": "dance"}), ("ended", {"end": None}), ("ended", {"attempt": ...})),
        *(("started", {"devices": None}), ("started", {"environment": []}), ("answered", {"done": "yes"})),
    ],
    ids=repr,
)
def test_a_field_that_makes_no_sense_is_a_clear_error(kind: str, change: dict[str, Any]) -> None:
    body = decode_value(WIRE.joinpath(f"{kind}.v1.msgpack").read_bytes())[2]
    wrong = {name: value for name, value in (body | change).items() if value is not ...}

    with pytest.raises(MessageVersionError, match=f"broken '{kind}' event"):
        decode_event(event_of(wrong, kind))


NAN = math.nan


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.5), 0.5), (np.uint64(2**64 - 1), 2**64 - 1), (np.bool_(True), True), (np.str_("a"), "a"),
        (np.array(2.5), 2.5), (np.longdouble("0.5"), 0.5), (np.array(np.longdouble("0.5")), 0.5), (np.array([]), []),
        (np.ma.masked, NAN), (np.ma.array(1.0, mask=True), NAN), (np.array([0.5, 1.5]), [0.5, 1.5]), (None, None),
        (np.array([0.5, 0.25], dtype=np.longdouble), [0.5, 0.25]), (np.array(["a", "b"]), ["a", "b"]),
        # Masked values are missing, and no zeros.
        (np.ma.array([1.0, 2.0], mask=[False, True]), [1.0, NAN]),
        ({"folds": [np.array([1, 2]), np.array([3])]}, {"folds": [[1, 2], [3]]}), (b"\x00", b"\x00"), ((1, 2), [1, 2]),
        ([np.float32(1), {"a": np.int8(2)}], [1.0, {"a": 2}]), ({1: "a", None: "b", 2.5: "c"}, {1: "a", None: "b", 2.5: "c"}),
        (-(2**63), -(2**63)), (np.float32("nan"), NAN), (np.float64("-inf"), -math.inf),
    ],
    ids=repr,
)  # fmt: skip
def test_metrics_become_plain_values(value: object, plain: object) -> None:
    _, metrics = decode_value(pack_metrics(1.0, {"m": value}))

    # By its text, in which NaN is equal to NaN.
    assert repr(metrics["m"]) == repr(plain)


def test_a_pandas_series_becomes_a_list() -> None:
    # Here, as the import takes a second in each process that collects the tests.
    import pandas as pd

    assert decode_value(pack_metrics(1.0, {"m": pd.Series([1, 2])}))[1] == {"m": [1, 2]}


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


class Unshowable:
    def __repr__(self) -> str:
        return "x" * 500


@pytest.mark.parametrize(
    "value",
    [
        *({1, 2}, np.complex64(1j), np.ones((2, 2)), np.array([{(1, 2): 3}]), np.array([1, {2}], dtype=object)),
        *(2**64, "\udc80", ["fine", {"deeper": {3}}], {"inner": 2**70}, {"\udc80": 1}),
        {(1, 2): "a tuple is packed as a list, which is no key"},
        *([{(1,): 1}], itself(), deep(3000), [[1], deep(100_000)], Unshowable()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_can_not_be_sent_is_a_type_error_that_names_the_metric(value: object) -> None:
    with pytest.raises(TypeError, match="'culprit'") as caught:
        pack_metrics(1.0, {"fine": 1, "culprit": value, "later": 2})

    assert len(str(caught.value)) < 1000


def test_an_array_of_several_dimensions_is_refused_with_its_type_its_shape_and_the_way_out() -> None:
    with pytest.raises(ReportInvalid) as caught:
        pack_metrics(1.0, {"loss": 1.0, "confusion": np.eye(2)})

    assert str(caught.value) == (
        "report: the metric 'confusion' can't be sent: array([[1., 0... [0., 1.]]) (this ndarray of 2×2 has 2 dimensions; an "
        "array may have at most one); report numbers, strings, lists or dicts, x.tolist() of an array, and put large "
        "values into a checkpoint"
    )


def test_what_can_be_sent_can_be_read_from_the_journal_and_written_as_json_however_deep_it_is() -> None:
    deepest = 500
    with contextlib.suppress(TypeError):
        while True:
            pack_metrics(1.0, {"culprit": deep(deepest + 1)})
            deepest += 1
    segment = segment_bytes("0001", 1, 1, [pack_metrics(1.0, {"culprit": deep(deepest)})])

    (report,) = decode_event(REPORTS_PREFIX + b"\xdd" + struct.pack(">I", 1) + segment)  # type: ignore[union-attr]

    assert report.metrics == {"culprit": deep(deepest)}
    assert json_text(report.metrics).count("[") == deepest + 1
    assert 500 < deepest < 520


def test_a_report_may_have_a_mebibyte_and_a_larger_one_is_refused_by_its_largest_metric() -> None:
    assert len(pack_metrics(1.0, {"loss": 1.0, "text": "x" * (MAX_REPORT_BYTES - 40)})) > MAX_REPORT_BYTES - 40

    with pytest.raises(ReportTooLarge, match=r"2 metrics have 1,048,\d{3} bytes .* is 'text' with"):
        pack_metrics(1.0, {"loss": 1.0, "text": "x" * MAX_REPORT_BYTES})
    with pytest.raises(ReportTooLarge, match="these 20,000 metrics") as caught:
        pack_metrics(1.0, {f"{'n' * 100}{number}": 1 for number in range(20_000)})
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    "metrics", [None, 0.5, "loss", [("loss", 1)], {"loss"}, np.float64(1), UserDict(loss=1)], ids=repr
)
def test_metrics_that_are_no_dict_are_a_type_error_that_shows_the_right_form(metrics: object) -> None:
    with pytest.raises(TypeError, match=re.escape("must be a dict such as {'loss': 0.1}, not ")):
        pack_metrics(1.0, metrics)  # type: ignore[arg-type]


# Entries of old journals decode for ever. Never change a file in tests/wire; add one.

EVENTS = sorted(path for path in WIRE.glob("*.msgpack") if not path.stem.startswith(("reports", "worker")))
T = TrialId("0001")
REPORTS: dict[str, list[Report]] = {
    "reports": [
        Report(T, 2, 5, 1_700_000_002.5, {"loss": 0.5, "epoch": 1, "note": "ü", "raw": b"\xff"}),
        Report(T, 2, 6, 1_700_000_002.75, {"loss": math.inf, "nested": {"a": [1, None, True]}}),
        Report(TrialId("0002"), 1, 1, 1_700_000_002.75, {}),
    ],
    "reports_with_checkpoints": [
        Report(T, 3, 1, 1_700_000_008.5, {"loss": 0.25}, checkpoint_id(T, 3, 1, in_memory=False)),
        Report(T, 3, 2, 1_700_000_008.75, {"loss": 0.125}),
        Report(TrialId("0003"), 1, 7, 1_700_000_008.75, {}, checkpoint_id("0003", 1, 2, in_memory=True)),
    ],
}


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.name)
def test_the_bytes_of_version_1_decode_for_ever(path: Path) -> None:
    version, kind, body = decode_value(path.read_bytes())

    event: Any = decode_event(path.read_bytes())

    assert kind == event.KIND
    assert decode_event(event_of(body | {"new": 1, "newer": {"a": [b"", None]}}, kind, version)) == event
    again = decode_value(event.encode())
    assert again[:2] == [version, kind]
    assert part(again[2], body) == body
    assert decode_event(event.encode()) == event


def part(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Today's values of earlier fields, also within a restart, which has more fields today."""
    return {name: part(now[name], old) if name == "restart" and old else now[name] for name, old in before.items()}


@pytest.mark.parametrize("path", [*EVENTS, *sorted(WIRE.glob("worker*.msgpack"))], ids=lambda path: path.name)
def test_true_is_no_number_and_1_is_no_flag(path: Path) -> None:
    *head, body = decode_value(path.read_bytes())
    decode = decode_event if len(head) > 1 else WorkerInfo.decode
    # A field of an earlier version is ignored, with any value.
    known = {each.name for each in dataclasses.fields(decode(path.read_bytes()))}  # type: ignore[arg-type]
    for name in body.keys() & known:
        if isinstance(body[name], bool | int | float):
            wrong = int(body[name]) if isinstance(body[name], bool) else True
            with pytest.raises(MessageVersionError, match=name):
                decode(encode_value([*head, {**body, name: wrong}]))


@pytest.mark.parametrize("name", REPORTS)
def test_the_reports_of_version_1_decode_for_ever(name: str) -> None:
    assert list(decode_event(WIRE.joinpath(f"{name}.v1.msgpack").read_bytes())) == REPORTS[name]  # type: ignore[arg-type]


@pytest.mark.parametrize("path", sorted(WIRE.glob("worker*.msgpack")), ids=lambda path: path.name)
def test_the_descriptions_of_workers_of_version_1_decode_for_ever(path: Path) -> None:
    _, body = decode_value(path.read_bytes())

    described = decode_value(encode_value(dataclasses.asdict(WorkerInfo.decode(path.read_bytes()))))

    # Messages that no worker sends any more are ignored.
    known = {name: value for name, value in body.items() if name not in ("problems", "note")}
    assert {name: described[name] for name in known} == known


def test_each_kind_of_event_has_its_bytes_kept() -> None:
    kinds = {decode_value(path.read_bytes())[1] for path in EVENTS}

    assert kinds == {kind.KIND for kind in KINDS}
    assert {f"{name}.v1" for name in REPORTS} == {path.stem for path in WIRE.glob("reports*")}
