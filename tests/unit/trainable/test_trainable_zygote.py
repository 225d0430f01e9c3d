"""Each kind of trainable in the process that a trial has to itself, found by its name."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from pathlib import Path

import pytest
from attempts import TrialProcess

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.process.protocol import PAUSE
from mqtune.trainable.spec import TrainableSpec

CODE = """
import mqtune, time

def reports_and_fails(config):
    for step in range(200):
        mqtune.report({"loss": step})
    raise ValueError("no luck")

class Waits(mqtune.Trainable):
    def setup(self, config):
        self.epoch = 0

    def step(self):
        self.epoch += 1
        print("in a step")
        time.sleep(self.config["step_s"])
        return {"loss": self.epoch}

    def save_checkpoint(self, folder):
        (folder / "epoch").write_text(str(self.epoch))

    def load_checkpoint(self, checkpoint):
        self.epoch = int((checkpoint.path / "epoch").read_text())

    def cleanup(self):
        print("cleaned up")

class Unfinished(mqtune.Trainable):
    pass
"""


@pytest.fixture
def code_root(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "kinds_of_trials.py").write_text(textwrap.dedent(CODE))
    return folder


def spec(name: str, kind: str = "function") -> TrainableSpec:
    return TrainableSpec.decode({"name": name, "module": "kinds_of_trials", "kind": kind})


def test_all_reports_of_a_function_come_before_its_error(tmp_path: Path, code_root: Path) -> None:
    with contextlib.closing(TrialProcess(tmp_path, spec("reports_and_fails"), code_root)) as one:
        one.start({})
        said = one.wait()
        assert one.values() == list(range(200))

    assert (said["end"], said["error_type"]) == ("failed", "ValueError")
    assert "kinds_of_trials.py" in said["error"]
    assert "mqtune/trainable" not in said["error"]
    assert one.process.returncode == 1


def test_a_class_that_is_paused_in_a_step_finishes_it_saves_and_cleans_up(tmp_path: Path, code_root: Path) -> None:
    with contextlib.closing(TrialProcess(tmp_path, spec("Waits", "class"), code_root)) as one:
        one.start({"step_s": 0.05})
        one.wait_for(lambda one: len(one.reports()) == 2)
        one.tell(PAUSE)

        assert one.wait()["end"] == "paused"
        assert one.saved() == ["p-t1-1-1"]
        assert one.stdout().splitlines()[-1] == "cleaned up"
        done = len(one.reports())
        saved = one.store / "p-t1-1-1"
        assert any(path.read_text() == str(done) for path in saved.rglob("epoch"))


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (spec("Waits"), "does not define the function 'Waits'"),
        (spec("reports_and_fails", "class"), "does not define the class"),
        (spec("gone", "class"), "does not define the class 'gone'"),
        (spec("Unfinished", "class"), "no step"),
    ],
)
def test_what_is_not_there_or_something_else_is_refused_on_the_worker(
    code_root: Path, monkeypatch: pytest.MonkeyPatch, wrong: TrainableSpec, shown: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "kinds_of_trials", raising=False)

    with pytest.raises(TrainableNotFound, match=shown):
        wrong.load(code_root)
