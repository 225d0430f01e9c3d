"""A mistake in a name or an argument, or in code of a user: one line that says what may be meant."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulation import curve

import mqtune
from mqtune import Simulated
from mqtune.core.errors import ConfigurationError
from mqtune.schedulers.stopping import StopRule

SCRIPT = """
import mqtune

def train(config):
    pass

class Mine(mqtune.FIFO):
    def on_report(self, trial, report):
        return self.judge(report)

    def judge(self, report):
        return report.metrics["accuracy"]  # the mistake

reports = [{"seconds": 1.0, "lr": 0.5, "loss": 0.5}]
mqtune.Tuner(
    train, {"lr": 0.5}, metric="loss", mode="min", scheduler=Mine(), backend=mqtune.Simulated(reports),
    run=mqtune.RunOptions(progress=False),
).run()
"""


def test_a_script_ends_with_the_place_of_the_mistake_and_one_line(tmp_path: Path, mqtune_home: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)

    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1
    assert lines[-1].startswith(
        "mqtune: UserCodeFailed: Mine.on_report raised KeyError: 'accuracy' (report 1 of trial 0001"
    )
    assert '    return report.metrics["accuracy"]  # the mistake' in lines
    assert not [line for line in lines if "mqtune/driver/loop/loop.py" in line]


@pytest.mark.parametrize(
    ("find", "meant"),
    [
        (lambda: mqtune.ASHAScheduler, "mqtune.ASHA(max_t=…)"),
        (lambda: mqtune.TuneConfig, "the arguments metric=, mode="),
        (lambda: mqtune.create_study, "mqtune.Tuner(…)"),
        (lambda: space_tuner().fit, "tuner.run()"),
        (lambda: space_tuner().optimize, "tuner.run()"),
        (lambda: space_tuner().results().get_best_result, "results.best"),
        (lambda: space_tuner().results().trials_dataframe, "results.dataframe()"),
    ],
)
def test_an_attribute_of_another_library_is_named_as_it_is_called_here(find: Callable[[], Any], meant: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"do you mean {meant}")):
        find()


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("mqtune.ASHA(max_t=-9)", "mqtune: ConfigurationError: ASHA: max_t=-9"),
        ("mqtune.uniform(1, 0)", "mqtune: SpaceError: uniform: low=1"),
    ],
)
def test_a_mistake_before_there_is_a_tuner_ends_a_script_with_one_line(tmp_path: Path, mistake: str, said: str) -> None:
    script = tmp_path / "tune.py"
    script.write_text(f"import mqtune\n{mistake}\n")

    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)

    (line,) = done.stderr.splitlines()
    assert line.startswith(said)
    assert line.endswith("(tune.py, line 2)")


def space_tuner(**options: Any) -> Any:
    given = {"metric": "loss", "mode": "min", "backend": Simulated(curve(1)), **options}
    return mqtune.Tuner(curve, {"x": mqtune.uniform(0, 1)}, **given)


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda: space_tuner(tune_config={}), "metric=, mode=, max_trials=, searcher= and scheduler=?"),
        (lambda: space_tuner(run_config={}), "name=, stop=, checkpoints=, failures= and run=?"),
        (lambda: space_tuner(searcher=object()), "OptunaSearcher(…)"),
        (lambda: mqtune.RunOptions(name="x"), "do you mean Tuner(name=…)?"),
        # A beginning comes before letters that are similar by chance.
        (lambda: mqtune.ASHA(max_t=9, grace=1), "ASHA has no argument 'grace'; do you mean grace_period=?"),
        (lambda: mqtune.ASHA(max_t=9, metric="loss"), "ASHA has no argument 'metric'; do you mean Tuner(metric=…)?"),
        (lambda: mqtune.MedianStopping(n_warmup_steps=3), "do you mean grace_period=?"),
        (lambda: mqtune.WilcoxonStopping(n_warmup_steps=3), "it has 'p_threshold'"),
        (lambda: mqtune.TargetReached(0.3, mode="min"), "do you mean Tuner(mode=…)?"),
        (lambda: mqtune.uniform(1e-4, 1, log=True), "do you mean mqtune.loguniform(low, high)"),
        (lambda: mqtune.randint(0, 8, step=2), "mqtune.qrandint(low, high, q)?"),
        (lambda: mqtune.Resources(gpu=1), "do you mean gpus=?"),
        (lambda: mqtune.Resources(GPU=1), "do you mean gpus=?"),
        (lambda: mqtune.Checkpoints(num_to_keep=2), "do you mean keep_last=?"),
    ],
)
def test_an_argument_of_another_library_is_named_as_it_is_called_here(make: Callable[[], Any], meant: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(meant)):
        make()


def test_a_rule_without_a_constructor_takes_no_arguments() -> None:
    class Bare(StopRule):
        pass

    assert isinstance(Bare(), StopRule)
    for given, options in (((3,), {}), ((), {"patience": 3})):
        with pytest.raises(TypeError, match=r"Bare\(\) takes no arguments"):
            Bare(*given, **options)


def test_a_list_in_a_space_is_a_constant_and_said_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    def given(space: dict[str, Any]) -> str:
        caplog.clear()
        mqtune.Tuner(curve, space, metric="loss", mode="min", backend=Simulated(curve(1)))
        return caplog.text

    assert "the list [0.1, 0.2] as 'lr' in each trial; to try its values write mqtune.choice([0.1, 0.2])" in given(
        {"lr": [0.1, 0.2]}
    )
    assert given({"lr": (0.1, 0.2), "layers": [64, 64], "x": mqtune.choice([1, 2])}) == ""
