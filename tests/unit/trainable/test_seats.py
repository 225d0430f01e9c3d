"""A trial with several seats: what each process of it has in its environment, and that only seat 0 reports, saves and asks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attempts import AttemptHere, ForkedTrial, TrialProcess, own_metrics

import mqtune
from mqtune.core.trial import AttemptEnd
from mqtune.trainable import FRAME_END, TrainableSpec

NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
SECOND: dict[str, Any] = {"seat": 1, "seats": 3, "address": "10.0.0.7:4123"}
OF_SECOND = ["1", "3", "0", "1", "1", "3", "10.0.0.7", "4123"]
SAYS = "this is seat 1 of 3 of the trial: only seat 0 reports and saves\n"


def variables() -> list[str | None]:
    return [os.environ.get(name) for name in NAMES]


@pytest.fixture(autouse=True)
def kept_environment() -> Iterator[None]:
    """An attempt in this process has this environment, in which another program may have set the same names."""
    before = dict(os.environ)
    for name in NAMES:
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


Seat = Callable[..., AttemptHere]


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[Seat]:
    """Makes an attempt in this process, in the second seat of three unless the message says otherwise."""
    with contextlib.ExitStack() as stack:
        yield lambda **message: stack.enter_context(contextlib.closing(AttemptHere(tmp_path, **{**SECOND, **message})))


def kinds(attempt: AttemptHere | TrialProcess) -> list[int]:
    return [kind for kind, _ in attempt.frames()]


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (SECOND, OF_SECOND),
        ({**SECOND, "seat": 0}, ["0", "3", "0", "1", "0", "3", "10.0.0.7", "4123"]),
        ({**SECOND, "address": "[::1]:80"}, [*OF_SECOND[:6], "::1", "80"]),
        ({**SECOND, "address": "node-7.lan:80"}, [*OF_SECOND[:6], "node-7.lan", "80"]),
        ({"seat": 0, "seats": 1, "address": ""}, [None] * 8),
    ],
)
def test_each_seat_of_a_gang_finds_the_others_by_the_variables_of_torchrun(
    seat: Seat, message: dict[str, Any], found: list[str | None]
) -> None:
    seen = []

    attempt = seat(**message)
    ending = attempt.run(lambda _: seen.append(variables()))

    assert (ending.end, ending.error) == (AttemptEnd.COMPLETED, "")
    assert seen == [found]


def test_another_seat_reports_nothing_counts_its_reports_waits_for_no_decision_and_says_so_once(
    seat: Seat, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = seat(sync="lockstep")
    last = []

    def train(_config: dict[str, Any]) -> None:
        for loss in (3.0, 2.0):
            mqtune.report({"loss": loss})
            last.append(attempt.session.last_metrics)
        mqtune.save_checkpoint({"epoch": 1})

    assert attempt.run(train).end is AttemptEnd.COMPLETED
    assert kinds(attempt) == []
    assert [own_metrics(row) for row in last] == [{"loss": 3.0}, {"loss": 2.0}]
    assert [row["training_iteration"] for row in last] == [1, 2]
    assert capsys.readouterr().err == SAYS


def test_another_seat_saves_nothing_and_leaves_no_file_in_the_store(seat: Seat, tmp_path: Path) -> None:
    attempt = seat()
    (own := tmp_path / "own").mkdir()
    (own / "weights").write_text("1")

    def train(_config: dict[str, Any]) -> None:
        mqtune.report({"loss": 1}, checkpoint={"epoch": 1})
        mqtune.report({"loss": 1}, checkpoint=own)
        mqtune.save_checkpoint(own)
        with mqtune.checkpoint_dir() as folder:
            (folder / "weights").write_text("1")
        mqtune.report({"loss": 1})
        with mqtune.checkpoint_dir() as folder:
            (folder / "weights").write_text("1")
            assert attempt.store not in folder.parents

    assert attempt.run(train).error == ""
    assert kinds(attempt) == []
    assert files_in(attempt.store) == ["store.json"]
    assert files_in(own) == ["weights"]
    assert files_in(attempt.session.scratch) == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: mqtune.report({"loss": object()}), "loss"),
        (lambda: mqtune.report({"loss": 1}, checkpoint={"epoch": object()}), "epoch"),
        (lambda: mqtune.save_checkpoint("nowhere"), "not there"),
        (lambda: mqtune.ask({"what": 1}), "this is seat 1 of the trial, and only seat 0 may ask"),
    ],
)
def test_another_seat_may_not_ask_and_its_arguments_are_checked(
    seat: Seat, call: Callable[[], object], error: str
) -> None:
    ending = seat().run(lambda _: call())

    assert ending.end is AttemptEnd.FAILED
    assert error in ending.error


class Steps(mqtune.Trainable):
    """Would be saved in each step, at its end, for a pause and on request."""

    checkpoint_every = 1
    checkpoint_at_end = True

    def step(self) -> dict[str, Any]:
        act: Callable[[], object] | None = self.config.get("act")
        if act is not None and self.training_iteration == 1:
            act()
        return {"loss": 1, "done": self.training_iteration == 2}

    def save_checkpoint(self, folder: Path) -> None:
        self.config["saved"].append(self.training_iteration)
        (folder / "state").write_text("1")

    def load_checkpoint(self, checkpoint: object) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("act", ["nothing", "stop", "pause", "want_saved"])
def test_a_class_in_another_seat_steps_and_is_never_saved(seat: Seat, act: str) -> None:
    ends = {"stop": AttemptEnd.STOPPED, "pause": AttemptEnd.PAUSED}
    saved: dict[int, list[int]] = {0: [], 1: []}
    for number in (0, 1):
        attempt = seat(seat=number, attempt=number + 1)
        acts = {"stop": attempt.stop, "pause": attempt.pause, "want_saved": lambda one=attempt: one.want_saved(1)}

        ending = attempt.run(Steps, {"saved": saved[number], "act": acts.get(act)})

        assert ending.end is ends.get(act, AttemptEnd.COMPLETED), ending.error
        assert number == 0 or kinds(attempt) == []
    assert saved[0]
    assert saved[1] == []


Trial = Callable[..., ForkedTrial]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Trial]:
    """Starts a script in the second seat of three, in a process that a zygote has forked."""
    with contextlib.ExitStack() as stack:

        def start(code: str, name: str, **message: Any) -> ForkedTrial:
            (root := tmp_path / "code").mkdir()
            (file := root / name).write_text(code)
            file.chmod(0o755)
            spec = TrainableSpec(file.stem, script=name, kind="script")
            trial = stack.enter_context(
                contextlib.closing(ForkedTrial(tmp_path, spec, root, **{**SECOND, "options": {}, **message}))
            )
            trial.start({})
            return trial

        yield start


REPORTS = f"""
import os
import mqtune
context = mqtune.get_context()
print(*(os.environ[name] for name in {NAMES!r}), context.seat, context.seats, context.address)
mqtune.report({{"loss": 1}}, checkpoint={{"epoch": 1}})
mqtune.save_checkpoint({{"epoch": 1}})
print(mqtune.should_checkpoint())
"""


def test_a_python_script_in_another_seat_knows_it_and_reports_and_saves_nothing(script: Trial) -> None:
    trial = script(REPORTS, "train.py", sync="lockstep")
    trial.want_saved(1)

    assert trial.wait()["end"] == "completed", trial.stderr()
    assert trial.stdout().splitlines() == [" ".join([*OF_SECOND, "1", "3", "10.0.0.7:4123"]), "False"]
    assert kinds(trial) == [FRAME_END]
    assert trial.stderr() == SAYS
