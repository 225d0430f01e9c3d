"""Classes as trainables: steps, what is counted, and how they are saved, paused, resumed and cleaned up."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attempts import COUNTED, AttemptHere

import mqtune
from mqtune import Checkpoint
from mqtune.core.errors import ConfigurationError, TrainableNotFound
from mqtune.core.trial import AttemptEnd
from mqtune.trainable import TrainableSpec, export_model

COUNTERS = {*COUNTED, "iterations_since_restore", "time_since_restore_s"}


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[AttemptHere]:
    with contextlib.closing(AttemptHere(tmp_path)) as attempt:
        yield attempt


class Falls(mqtune.Trainable):
    """Its loss falls by one in each step, and it is done at zero; ``on_step`` is called in each."""

    log: list[str]
    on_step: Any = None

    def setup(self, config):
        self.log.append("setup")
        self.loss = config["loss"]

    def step(self):
        self.loss -= 1
        self.log.append(f"step {self.loss}")
        if self.on_step is not None:
            self.on_step()
        return {"loss": self.loss, "done": self.loss == 0}

    def cleanup(self):
        self.log.append("cleanup")


class InFolder(Falls):
    def save_checkpoint(self, folder):
        self.log.append("save")
        (folder / "loss.json").write_text(json.dumps(self.loss))

    def load_checkpoint(self, checkpoint):
        self.log.append("load")
        self.loss = json.loads((checkpoint.path / "loss.json").read_text())


class InDict(Falls):
    def save_checkpoint(self, folder):
        self.log.append("save")
        return {"loss": self.loss}

    def load_checkpoint(self, checkpoint):
        self.log.append("load")
        self.loss = checkpoint.data["loss"]


class Anything(mqtune.Trainable):
    """Returns what its config says."""

    def step(self):
        return self.config["returns"][self.training_iteration]


def a(base: type, **attributes: Any) -> Any:
    """A class with a log of its own."""
    return type("Own", (base,), {"log": [], **attributes})


def resumed(attempt: AttemptHere, tmp_path: Path, name: str, number: int = 2) -> AttemptHere:
    """The next attempt, from a checkpoint of this one."""
    return AttemptHere(tmp_path, attempt=number, checkpoint=name, checkpoint_data=attempt.dicts().get(name))


def test_a_class_is_set_up_stepped_until_it_is_done_and_cleaned_up_and_its_steps_are_counted(attempt: AttemptHere):
    own = a(Falls)

    assert attempt.run(own, {"loss": 3}).end is AttemptEnd.COMPLETED
    assert own.log == ["setup", "step 2", "step 1", "step 0", "cleanup"]
    assert attempt.values() == [2, 1, 0]
    assert [set(row) for row in attempt.rows()] == [COUNTERS | {"loss"}] * 3
    assert attempt.values("training_iteration") == [1, 2, 3]
    assert attempt.values("iterations_since_restore") == [1, 2, 3]
    times = attempt.values("time_this_iter_s")
    assert attempt.values("time_total_s") == [sum(times[:count]) for count in (1, 2, 3)]


@pytest.mark.parametrize(
    ("returned", "name", "counted"),
    [
        ([{}, {"training_iteration": 10}, {}], "training_iteration", [1, 10, 3]),
        ([{"time_this_iter_s": 2.0}, {"time_this_iter_s": 3.0}], "time_total_s", [2, 5]),
        ([{}, {"timesteps_this_iter": 100}, {"timesteps_this_iter": 50}, {}], "timesteps_total", [None, 100, 150, 150]),
        ([{}, {"episodes_this_iter": 1}, {}], "episodes_total", [None, 1, 1]),
    ],
)
def test_what_a_step_returns_of_its_counts_wins_or_is_summed(attempt: AttemptHere, returned, name, counted):
    rows = [{"loss": 1, **each} for each in returned]
    rows[-1]["done"] = True

    attempt.run(Anything, {"returns": rows})

    assert attempt.values(name) == counted


@pytest.mark.parametrize("returned", [None, 0.5, [1]])
def test_a_step_that_returns_no_dict_is_an_error_that_names_the_class(attempt: AttemptHere, returned):
    ending = attempt.run(Anything, {"returns": [returned]})

    assert (ending.end, ending.error_type) == (AttemptEnd.FAILED, "TypeError")
    assert f"Anything.step returned {returned!r}" in ending.error


@pytest.mark.parametrize(
    ("save", "error"),
    [
        (lambda self, folder: 3, "returned 3"),
        (lambda self, folder: "/elsewhere", "returned '/elsewhere'"),
        (lambda self, folder: (folder / "x").touch() or {"a": 1}, "returned a dict and wrote files"),
        # Older code returns the folder or a path in it.
        (lambda self, folder: str(folder / "model.bin"), ""),
    ],
)
def test_a_save_returns_a_dict_or_nothing(attempt: AttemptHere, save, error):
    ending = attempt.run(a(InFolder, checkpoint_every=1, save_checkpoint=save), {"loss": 1})

    assert error in ending.error
    assert (ending.error_type, attempt.checkpoints()) == (("TypeError", []) if error else ("", ["p-t1-1-1"]))


def test_a_checkpoint_for_a_class_that_can_not_load_it_is_an_error(attempt: AttemptHere, tmp_path: Path):
    attempt.run(a(InDict, checkpoint_every=1), {"loss": 2})

    with contextlib.closing(resumed(attempt, tmp_path, attempt.checkpoints()[0])) as again:
        ending = again.run(a(Falls), {"loss": 2})

    assert ending.error_type == "ConfigurationError"
    assert "has no load_checkpoint" in ending.error


def broken(self, *args):
    raise ValueError("broken")


def untidy(self):
    self.log.append("cleanup")
    raise OSError("untidy")


def logging(line: str, call: Any) -> Any:
    """A method that calls something, and then notes a line."""
    return lambda self, *_: [call(), self.log.append(line)]


def stopped(attempt: AttemptHere) -> Any:
    """A step that is stopped in its middle."""

    def step(self):
        try:
            attempt.stop()
            self.log.append("went on")
        finally:
            self.log.append("finally")

    return step


PAUSED, STOPPED, COMPLETED, FAILED = AttemptEnd.PAUSED, AttemptEnd.STOPPED, AttemptEnd.COMPLETED, AttemptEnd.FAILED
#: The class, its attributes by the attempt, its first loss, its end, and its log.
ENDS: dict[str, tuple[type, Any, int, AttemptEnd, list[str]]] = {
    "a pause is obeyed behind the step": (InFolder, lambda t: {"on_step": lambda _: t.pause()}, 5, PAUSED, ["setup", "step 4", "save", "cleanup"]),
    "without a second checkpoint of an iteration": (InFolder, lambda t: {"on_step": lambda _: t.pause(), "checkpoint_every": 1}, 5, PAUSED, ["setup", "step 4", "save", "cleanup"]),
    "also without checkpoints": (Falls, lambda t: {"on_step": lambda _: t.pause()}, 5, PAUSED, ["setup", "step 4", "cleanup"]),
    "not in the last step": (InFolder, lambda t: {"on_step": lambda _: t.pause()}, 1, COMPLETED, ["setup", "step 0", "cleanup"]),
    "without a checkpoint before the first step": (InFolder, lambda t: {"setup": logging("setup", t.pause)}, 5, PAUSED, ["setup", "cleanup"]),
    "a stop is raised in the middle of a step": (InFolder, lambda t: {"step": stopped(t), "checkpoint_at_end": True}, 5, STOPPED, ["setup", "finally", "cleanup"]),
    "a stop in cleanup changes nothing": (Falls, lambda t: {"cleanup": logging("cleanup", t.stop)}, 1, COMPLETED, ["setup", "step 0", "cleanup"]),
    "an error in cleanup does not hide a stop": (Falls, lambda t: {"on_step": lambda _: t.stop(), "cleanup": untidy}, 5, STOPPED, ["setup", "step 4", "cleanup"]),
    "cleanup runs after an error in setup": (Falls, lambda _: {"setup": broken}, 1, FAILED, ["cleanup"]),
    "cleanup runs after an error in a step": (Falls, lambda _: {"step": broken}, 1, FAILED, ["setup", "cleanup"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_it_ends_as_it_is_told_and_is_cleaned_up(attempt: AttemptHere, name: str, capsys: pytest.CaptureFixture[str]):
    base, attributes, loss, end, log = ENDS[name]
    own = a(base, **attributes(attempt))

    assert attempt.run(own, {"loss": loss}).end is end
    assert own.log == log
    assert ("OSError: untidy" in capsys.readouterr().err) == ("hide a stop" in name)


@pytest.mark.parametrize("base", [InFolder, InDict])
def test_a_paused_trial_goes_on_from_its_checkpoint(attempt: AttemptHere, tmp_path: Path, base):
    attempt.run(a(base, on_step=lambda self: attempt.pause()), {"loss": 5})
    (name,) = attempt.saved()

    with contextlib.closing(resumed(attempt, tmp_path, name)) as again:
        again.run(a(base), {"loss": 5})
        assert again.values() == [3, 2, 1, 0]
        assert again.values("training_iteration") == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("trainable", "shown"),
    [
        (dict, "derive from mqtune.Trainable"),
        (mqtune.Trainable, "derive from mqtune.Trainable"),
        (a(mqtune.Trainable), "no step"),
        (a(Falls, __init__=lambda self, config: None), r"Own\(config\).*setup"),
        (a(Falls, save_checkpoint=lambda self, folder: {}), "both"),
        (a(Falls, checkpoint_every=3), "no save_checkpoint"),
    ],
)
def test_a_class_that_can_not_be_tuned_is_refused_with_the_reason(trainable, shown):
    with pytest.raises(TrainableNotFound, match=shown):
        TrainableSpec.of(trainable)


class Exports(InDict):
    export_formats = ("text", "json")

    def export_model(self, format, folder):
        self.log.append("export")
        (folder / f"model.{format}").write_text(str(self.loss))


def test_a_model_is_exported_from_a_checkpoint_in_a_format_that_there_is(tmp_path: Path):
    own = a(Exports)

    export_model(own, {"loss": 9}, Checkpoint(data={"loss": 4}), "json", tmp_path / "out" / "model")

    assert (tmp_path / "out" / "model" / "model.json").read_text() == "4"
    assert own.log == ["setup", "load", "export", "cleanup"]
    with pytest.raises(ConfigurationError, match="none"):
        export_model(a(Falls), {"loss": 9}, None, "onnx", tmp_path)
