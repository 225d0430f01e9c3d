"""What goes wrong is said clearly, by name, with a way out; and nothing is lost or left running."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trainables
from click.testing import CliRunner
from waiting import eventually

import mqtune
from mqtune.cli import group
from mqtune.core.errors import (
    ConfigurationError,
    InsufficientResources,
    NameTaken,
    ReportInvalid,
    TrainableNotFound,
)
from mqtune.core.trial import AttemptEnd, Trial, TrialStatus, attempt_and_number
from mqtune.results.results import Results
from mqtune.worker import usable_cpus

Tune = Callable[..., mqtune.Tuner]
SPACE = {"x": mqtune.uniform(0, 1)}


def only_trial(tuner: mqtune.Tuner) -> Trial:
    (trial,) = tuner.get_trials()
    return trial


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (lambda: {"metric": ""}, "metric"),
        (lambda: {"mode": "best"}, "mode"),
        (lambda: {"max_trials": 0}, "max_trials=0"),
        (lambda: {"run": mqtune.RunOptions(max_concurrent=-1)}, "max_concurrent=-1"),
        (lambda: {"run": mqtune.RunOptions(progress="no")}, "progress='no'"),
        (lambda: {"failures": mqtune.Failures(max_failures=-2)}, "max_failures=-2"),
        (lambda: {"failures": {"max_failures": 2}}, r"failures=.*give mqtune\.Failures\(…\)"),
        (lambda: {"checkpoints": "/a/folder"}, r"checkpoints=.*give mqtune\.Checkpoints\(…\)"),
        (lambda: {"checkpoints": mqtune.Checkpoints(keep_last=0)}, "keep_last=0"),
        (lambda: {"checkpoints": mqtune.Checkpoints(7)}, "store=7"),
        (lambda: {"scheduler": "asha"}, "scheduler='asha'"),
        (lambda: {"searcher": 3}, "searcher=3"),
        (
            lambda: {"searcher": "tep"},
            r"searcher='tep' is not a Searcher; give one, its name \(random, tpe, auto, ax\)",
        ),
        (lambda: {"resources": {"gpus": 1}}, "resources="),
        (lambda: {"name": "a b"}, "name='a b'"),
        (lambda: {"seed": "x"}, "seed='x'"),
        (lambda: {"process": mqtune.Process(start_method="thread")}, "start_method='thread'"),
        (lambda: {"searcher": mqtune.PointsFirst([{"y": 1}])}, r"points\[0\]"),
        (lambda: {"backend": mqtune.Local(slots=0)}, "slots=0"),
        (lambda: {"backend": 7}, "backend=7 is not a backend; give the URL"),
        (lambda: {"backend": mqtune.Simulated}, "is not a backend"),
        (
            lambda: {
                "backend": mqtune.Simulated([{"x": 1, "seconds": 1.0, "loss": 1}]),
                "checkpoints": mqtune.Checkpoints("/a/folder"),
            },
            "simulated workers store no checkpoints",
        ),
    ],
)
def test_an_invalid_argument_is_refused_when_it_is_given(given, names):
    with pytest.raises(ConfigurationError, match=names):
        mqtune.Tuner(trainables.steady, SPACE, **{"metric": "loss", "mode": "min", **given()})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_failures", "failures=mqtune.Failures(max_failures=…)"),
        ("broker", "backend=, or $MQTUNE_BROKER"),
        ("checkpoint", "checkpoints="),
        ("progress", "run=mqtune.RunOptions(progress=…)"),
    ],
)
def test_an_argument_that_is_elsewhere_is_refused_with_where_it_is(name: str, meant: str):
    with pytest.raises(ConfigurationError, match=re.escape(f"Tuner has no argument {name!r}; do you mean {meant}?")):
        mqtune.Tuner(trainables.steady, SPACE, metric="loss", mode="min", **{name: 1})


def test_a_trainable_that_no_worker_could_import_is_refused_when_the_tuner_is_built():
    lock = threading.Lock()

    class Inner(mqtune.Trainable):
        def step(self):
            pass

    for trainable, what in (
        (Inner, "inside a function"),
        (lambda config: lock, r"lock, a lock, no plain value\. Load it inside the function"),
        (functools.partial(lambda config, epochs: None, epochs=lock), "epochs, a lock, no plain value"),
        (functools.partial(trainables.steady, epochs=3), "'steady' can't be called with a config: .*epochs=3"),
        (3, "not a function"),
        (pow, "not a function"),
    ):
        with pytest.raises(TrainableNotFound, match=what):
            mqtune.Tuner(trainable, SPACE, metric="loss", mode="min", backend="redis://localhost:1/0")


@pytest.mark.parametrize(
    ("trainable", "exit_code", "number", "words"),
    [
        ("raises", 1, None, "ValueError: the learning rate exploded"),
        ("exits", 1, None, "SystemExit: 3"),
        ("exits_hard", 7, None, "exited with code 7"),
        ("killed", None, 9, "killed by SIGKILL"),
    ],
)
def test_a_trainable_that_breaks_makes_a_failed_trial_that_says_why(tune: Tune, trainable, exit_code, number, words):
    tuner = tune(trainable)

    tuner.run()

    trial = only_trial(tuner)
    assert trial.status is TrialStatus.FAILED
    assert words in trial.reason
    assert (trial.attempt.exit_code, trial.attempt.signal) == (exit_code, number)
    assert trial.attempt.end is AttemptEnd.FAILED


def test_the_first_report_that_can_not_be_sent_ends_the_run(tune: Tune):
    tuner = tune("reports_a_set", {"x": mqtune.uniform(0, 1)}, max_trials=40)

    with pytest.raises(ReportInvalid, match=r"^trial \d+: report: the metric 'seen' can't be sent: \{1, 2\} \(set is"):
        tuner.run()

    assert len(tuner.get_trials()) < 10


def test_binary_output_is_kept_and_shown(tune: Tune):
    tuner = tune("prints_binary")

    tuner.run()

    attempt = only_trial(tuner).attempt
    assert "RuntimeError: with binary output" in attempt.error
    assert "raw bytes on stderr" in attempt.stderr_tail
    assert Path(attempt.stdout_path).read_bytes().startswith(bytes(range(256)))


def test_a_name_of_this_machine_is_refused_on_a_broker_in_words_and_the_other_way_round(
    tune: Tune, broker: str, mqtune_home: Path
):
    def here(**options: Any) -> mqtune.Tuner:
        return tune("steady", name="moving", max_trials=1, seed=1, backend=mqtune.Local(), **options)

    def there(**options: Any) -> mqtune.Tuner:
        return tune("steady", name="moving", max_trials=1, seed=1, **options)

    here().run()
    with pytest.raises(NameTaken) as refused:
        there().run()
    assert "it ran on this machine alone, and now a broker is given: " in str(refused.value)
    assert "backend=mqtune.Local(), or without $MQTUNE_BROKER" in str(refused.value)
    assert "store was" not in str(refused.value)

    there(run=mqtune.RunOptions(overwrite=True)).run()
    assert CliRunner().invoke(group, ["show", "moving", "--broker", broker]).exit_code == 0
    # Nothing says any more that it has a server of its own.
    assert not (mqtune_home / "moving" / "redis").exists()
    with pytest.raises(NameTaken, match=r"it ran on a broker, and now none is given\n.*with \$MQTUNE_BROKER"):
        here().run()


def test_an_experiment_that_is_overwritten_leaves_nothing_behind(tune: Tune, tmp_path: Path, mqtune_home: Path):
    store = tmp_path / "store"

    def tuner(**options: Any) -> mqtune.Tuner:
        return tune("saves_folder", name="again", checkpoints=mqtune.Checkpoints(store), max_trials=2, **options)

    first = tuner(seed=1).run()
    (mqtune_home / "again" / "notes.txt").write_text("of the first")
    (mqtune_home / "again" / "pictures").mkdir()
    with pytest.raises(NameTaken, match=r"seed was 1 and is 2\n.*name='again-2'.*`mqtune drive again`.*overwrite=True"):
        tuner(seed=2).run()

    second = tuner(seed=2, run=mqtune.RunOptions(overwrite=True)).run()

    assert (len(second), second.outcome) == (2, "finished")
    assert [trial.config for trial in second] != [trial.config for trial in first]
    assert [attempt_and_number(trial.trial.checkpoint) for trial in second] == [
        attempt_and_number(trial.trial.checkpoint) for trial in first
    ]
    assert not [name for name in ("notes.txt", "pictures") if (mqtune_home / "again" / name).exists()]
    assert second.definition["seed"] == 2
    assert len(list(second.reports())) == sum(trial.trial.reports for trial in second)
    assert tuner(seed=2).run().best.value == second.best.value


def test_threads_that_watch_do_not_outlive_the_run(tune: Tune):
    before = set(threading.enumerate())

    tune("steady").run()

    eventually(lambda: set(threading.enumerate()) <= before, 5)


# On this machine alone.


def test_what_this_machine_can_not_give_is_an_error_at_once_and_the_name_stays_free(
    monkeypatch: pytest.MonkeyPatch, mqtune_home: Path
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def tuner(resources: mqtune.Resources, **options: Any) -> mqtune.Tuner:
        given = {
            "metric": "loss",
            "mode": "min",
            "name": "local",
            "resources": resources,
            "run": mqtune.RunOptions(progress=False),
        }
        return mqtune.Tuner(trainables.steady, SPACE, **{**given, **options})

    with pytest.raises(InsufficientResources, match="this machine can't give: it sees none"):
        tuner(mqtune.Resources(gpus=0.5)).run()

    all_cores = mqtune.Resources(cpus=usable_cpus(), tags=["big"])
    results = tuner(all_cores).run()

    assert [trial.status for trial in results] == [TrialStatus.COMPLETED]
    with pytest.raises(InsufficientResources):
        tuner(mqtune.Resources(gpus=0.5), run=mqtune.RunOptions(overwrite=True)).run()
    assert Results.load("local").best.value == results.best.value
    assert "+big" in results.best.attempts[0].queue
