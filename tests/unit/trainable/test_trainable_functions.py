"""Functions as trainables: their calls, and their returned, yielded and raised values."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgpack
import numpy as np
import pytest
from attempts import AttemptHere

import mqtune
from mqtune.checkpoints import encode_dict
from mqtune.core.trial import AttemptEnd


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[AttemptHere]:
    with contextlib.closing(AttemptHere(tmp_path)) as attempt:
        yield attempt


def got(*, reporter: object = "none", checkpoint_dir: object = "none") -> dict[str, Any]:
    return {"got": [type(reporter).__name__, checkpoint_dir]}


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda config: got(), ["str", "none"]),
        (lambda config, reporter: got(reporter=reporter), ["Reporter", "none"]),
        (lambda config, checkpoint_dir=3: got(checkpoint_dir=checkpoint_dir), ["str", None]),
        (lambda config, *, reporter, checkpoint_dir=3: got(reporter=reporter, checkpoint_dir=checkpoint_dir), ["Reporter", None]),
        (lambda *args, scale=1.0, **kwargs: {"got": [len(args), scale, kwargs]}, [1, 1.0, {}]),
        # The first parameter is the config, under any name.
        (lambda reporter: got(reporter=reporter), ["dict", "none"]),
    ],
)  # fmt: skip
def test_a_function_gets_what_its_signature_names(attempt: AttemptHere, function, given):
    assert attempt.run(function).error == ""
    assert attempt.values("got") == [given]


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda: None, "()"),
        (lambda config, model: None, "(config, model)"),
        (lambda *, config: None, "(*, config)"),
        (lambda config, reporter, model: None, "(config, reporter, model)"),
        (lambda config, reporter, /: None, "(config, reporter, /)"),
    ],
)
def test_a_function_that_can_not_be_called_is_refused_with_what_was_found(attempt: AttemptHere, function, shown):
    ending = attempt.run(function)

    assert ending.error_type == "TrainableNotFound"
    assert f"{shown} can't be called with the config alone; write it as f(config)" in ending.error


def test_a_function_reports_with_the_reporter_that_it_takes(attempt: AttemptHere):
    seen: list[Any] = []

    def train(config, reporter):
        seen.extend((reporter.trial_id, reporter.trial_name, reporter.logdir))
        for step in range(3):
            reporter(loss=config["x"] - step, done=False)
        reporter(loss=0, time_this_iter_s=7.5)

    assert attempt.run(train, {"x": 5}).end is AttemptEnd.COMPLETED
    assert attempt.values() == [5, 4, 3, 0]
    assert attempt.values("time_this_iter_s")[-1] == 7.5
    assert all("done" not in report and report["time_this_iter_s"] >= 0 for report in attempt.rows())
    assert seen == ["t1", "exp_t1", str(attempt.folder / "attempt")]
    assert os.path.isdir(seen[2])


def stops(config):
    raise StopIteration


def yields(config):
    yield 3
    yield {"loss": 2, "epoch": 2}
    return 1


#: Functions, with all their reports.
REPORTS: list[tuple[Any, list[dict[str, Any]]]] = [
    # A number that is returned is a report of the metric, and a dict is one of its own.
    *((lambda config, it=it: it, [{"loss": it}]) for it in (3, math.inf, np.float32(0.5))),
    (lambda config: {"loss": 1, "accuracy": 0.5}, [{"loss": 1, "accuracy": 0.5}]),
    *((function, []) for function in (lambda config: None, lambda config: {}, stops)),
    (lambda config, reporter: reporter(done=True), []),
    (yields, [{"loss": 3}, {"loss": 2, "epoch": 2}, {"loss": 1}]),
]


@pytest.mark.parametrize(("train", "reports"), REPORTS)
def test_these_are_the_reports_of_a_function(attempt: AttemptHere, train, reports):
    assert attempt.run(train).end is AttemptEnd.COMPLETED
    assert attempt.reports() == reports


def test_a_generator_is_stopped_at_its_yield_and_cleans_up(attempt: AttemptHere):
    seen = []

    def train(config):
        try:
            yield 1
            attempt.write(b"S")
            assert not attempt.session.is_save_wanted(), "this reads the order to stop"
            yield 2
            seen.append("went on")
        except Exception:
            seen.append("swallowed")
        finally:
            seen.append("cleaned up")

    assert attempt.run(train).end is AttemptEnd.STOPPED
    assert seen == ["cleaned up"]


def test_a_checkpoint_dir_is_the_next_reports_checkpoint_and_the_next_attempts(attempt: AttemptHere, tmp_path: Path):
    found = []

    def train(config, checkpoint_dir=None):
        if checkpoint_dir is not None:
            found.append(Path(checkpoint_dir, "weights").read_text())
            return 0
        mqtune.report({"loss": 3})
        with mqtune.checkpoint_dir(step=2) as folder:
            Path(folder, "weights").write_text("two")
        mqtune.report({"loss": 2})
        return 1

    assert attempt.run(train).end is AttemptEnd.COMPLETED
    first, name, last = attempt.checkpoints()
    assert (first, bool(name), last) == ("", True, "")
    with contextlib.closing(AttemptHere(tmp_path, attempt=2, checkpoint=name)) as again:
        assert again.run(train).end is AttemptEnd.COMPLETED
        # A resumed function's iterations count on.
        assert again.values("training_iteration") == [3]
    assert found == ["two"]


def test_a_checkpoint_dir_whose_block_fails_is_no_checkpoint(attempt: AttemptHere):
    def train(config):
        try:
            with mqtune.checkpoint_dir(1) as folder:
                Path(folder, "weights").write_text("half")
                raise OSError("disk full")
        except OSError:
            mqtune.report({"loss": 1})
        assert not Path(folder).exists()

    assert attempt.run(train).end is AttemptEnd.COMPLETED
    assert attempt.checkpoints() == [""]


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([(2.0, {}), (3.0, {}), (1.0, {})], [(1, 2.0, 2.0), (2, 3.0, 5.0), (3, 1.0, 6.0)]),
        # A time of an iteration that it says itself counts towards the total; the other two stand for that report alone.
        ([(2, {"training_iteration": 10, "time_total_s": 1000.0}), (2, {"time_this_iter_s": 20.0}), (2, {"time_this_iter_s": "long"})],
         [(10, 2.0, 1000.0), (2, 20.0, 22.0), (3, "long", 24.0)]),
    ],
)  # fmt: skip
def test_every_report_has_its_iteration_and_times_from_the_attempts_own_beginning_unless_it_takes_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reports: Any, expected: list[Any], is_resumed: bool
):
    watch = Mock(return_value=100.0)
    monkeypatch.setattr("mqtune.trainable.process.session.monotonic", watch)

    def function(config):
        for number, (seconds, metrics) in enumerate(reports, 1):
            watch.return_value += seconds
            if number == len(reports):
                return {"loss": 2, **metrics}
            mqtune.report({"loss": 1, **metrics})
        return None

    data = encode_dict({}, {"training_iteration": 7, "time_total_s": 30.0})
    start = {"checkpoint": "m-t1-1-1", "checkpoint_data": data} if is_resumed else {}
    names = ("training_iteration", "time_this_iter_s", "time_total_s")
    with contextlib.closing(AttemptHere(tmp_path, **start)) as one:
        one.run(function)

        assert list(zip(*map(one.values, names), strict=True)) == expected
        assert one.values() == [1, 1, 2]


def test_a_function_with_a_checkpoint_dir_that_is_resumed_from_a_dict_gets_a_folder_with_it(tmp_path: Path):
    seen = []

    def function(config, checkpoint_dir=None):
        (file,) = Path(checkpoint_dir).iterdir()
        seen.append((file.name, msgpack.unpackb(file.read_bytes()), mqtune.get_checkpoint().data))

    data = {"epoch": 3, "raw": b"\xff", "losses": [1.0, None]}
    packed = encode_dict(data, {"training_iteration": 3})
    with contextlib.closing(AttemptHere(tmp_path, checkpoint="m-t1-1-1", checkpoint_data=packed)) as one:
        assert one.run(function).end is AttemptEnd.COMPLETED

    assert seen == [("checkpoint.msgpack", data, data)]
