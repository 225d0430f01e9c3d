"""Programs that know nothing of mqtune are tuned without a change.

Their command lines and patterns are those of docs/how-to/tune.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

import pytest

import mqtune
from mqtune.results.experiments import saved_experiments
from mqtune.results.results import Results

_PAGE: Final = (Path(__file__).parents[2] / "docs" / "how-to" / "tune.md").read_text()
#: The page's program, and its further scripts.
_PROGRAM, _SCRIPTS = re.findall(r"^```python\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)
#: Longer than a run of these takes on a machine that runs ten other programs.
_PATIENCE_S: Final = 120

#: Its settings are variables, which a file and arguments replace, and nothing but ``--name=value`` of the same type is taken.
_GPT: Final = """
    import os, sys
    from ast import literal_eval

    learning_rate = 0.01
    n_layer = 1
    eval_iters = 1
    settings = {name: value for name, value in globals().items() if isinstance(value, int | float | str) and name[0] != "_"}
    for argument in sys.argv[1:]:
        if not argument.startswith("--"):
            exec(open(argument).read())
            continue
        name, equals, text = argument[2:].partition("=")
        assert equals, argument
        assert name in settings, name
        assert type(literal_eval(text)) is type(settings[name]), (name, text)
        globals()[name] = literal_eval(text)
    for step in range(0, 10 * eval_iters, 10):
        loss = abs(learning_rate - 0.003) + n_layer / 10 / (step + 1)
        print(f"step {step}: train loss {loss / 2:.4f}, val loss {loss!r}")
        print(f"iter {step}: loss {loss:.4f}, time 2.00ms")
    """
#: A program with options of one letter, as getopt reads them.
_SVM: Final = """
    #!/bin/sh
    while getopts c:g:v: option; do
        case $option in c) c=$OPTARG ;; g) g=$OPTARG ;; v) v=$OPTARG ;; *) exit 2 ;; esac
    done
    shift $((OPTIND - 1))
    [ "$1" = heart.scale ] && [ $# = 1 ] || exit 3
    echo "optimization finished, #iter = 17"
    awk "BEGIN { printf \\"Cross Validation Accuracy = %.1f%%\\\\n\\", $c * 10 + $g + $v }"
    """
#: A program that gets its parameters by place, and prints like R.
_FOREST: Final = """
    #!/bin/sh
    echo "Loading required package: forest" >&2
    for fold in 1 2 3; do
        echo "fold  $fold  of 3"
        echo "  rmse:   $(($1 + $2 * fold)).5"
    done
    """
#: A program with Hydra's arguments; the values are read as its grammar does.
_HYDRA: Final = """
    import json, logging, sys

    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    assert given.pop("hydra.run.dir") == "."
    values = {name: json.loads(text) for name, text in given.items()}
    logging.basicConfig(level="INFO", format="[%(asctime)s][%(levelname)s] - %(message)s")
    loss = values["model.lr"] * len(values["model.sizes"]) + (values["model.name"] == "big") - (values["model.drop"] is None)
    logging.info("val/loss=%r", loss)
    """
#: A module of a package, with a flag, a list and negative numbers.
_FLAGS: Final = """
    import argparse
    from package.loss import loss_of

    parser = argparse.ArgumentParser()
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--shift", type=float)
    arguments = parser.parse_args()
    print("loss", loss_of(arguments.shift) + arguments.amp)
    """


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def written(path: Path, code: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(code).lstrip())
    path.chmod(0o755)


def the_script(name: str) -> mqtune.Script:
    names: dict[str, Any] = {"mqtune": mqtune}
    exec(compile(_SCRIPTS, "docs/how-to/tune.md", "exec"), names)
    found = names[name]
    assert isinstance(found, mqtune.Script)
    return found


def tuned(trainable: mqtune.Script | str, space: dict[str, Any], metric: str = "loss", mode: Any = "min") -> Results:
    """The results of a grid, all of whose trials have completed."""
    run = mqtune.RunOptions(progress=False)
    results = mqtune.Tuner(
        trainable, space, metric=metric, mode=mode, name="calls", backend=mqtune.Local(slots=2), run=run
    ).run()
    assert [each.error for each in results if each.status is not mqtune.TrialStatus.COMPLETED] == []
    return results


def test_the_program_of_the_page_tunes_a_script_in_the_style_of_nanogpt(folder: Path) -> None:
    written(folder / "train.py", _GPT)
    written(folder / "config" / "shakespeare.py", "eval_iters = 3\n")
    (folder / "tune.py").write_text(_PROGRAM)

    done = subprocess.run(
        [sys.executable, "tune.py"], env={**os.environ, "MQTUNE_BROKER": ""}, capture_output=True, text=True, timeout=_PATIENCE_S
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    results = Results.load(saved_experiments()[0])
    assert len(results) == 4
    for result in results:
        off, layers = abs(result.config["learning_rate"] - 0.003), result.config["n_layer"]
        reports = [(report.metrics["step"], report.metrics["val_loss"]) for report in results.reports(result.id)]
        assert reports == [(step, off + layers / 10 / (step + 1)) for step in (0, 10, 20)]


#: Each script of the page: its files, its space, its metric and mode, and what a trial with a config must report at best.
PROGRAMS: Final[dict[str, tuple[Any, ...]]] = {
    "libsvm": (
        {"svm-train": _SVM},
        {"c": mqtune.grid_search([1, 2, 4]), "g": 0.5},
        ("accuracy", "max"),
        lambda config: config["c"] * 10 + 5.5,
    ),
    "forest": (
        {"forest.R": _FOREST},
        {"trees": mqtune.grid_search([10, 20]), "depth": mqtune.grid_search([1, 2])},
        ("rmse", "min"),
        lambda config: config["trees"] + config["depth"] + 0.5,
    ),
    "hydra": (
        {"train.py": _HYDRA},
        {
            "model.lr": mqtune.grid_search([-1e-05, 0.5]),
            "model.sizes": (32, 16),
            "model.name": "big",
            "model.drop": None,
        },
        ("loss", "min"),
        lambda config: 2 * config["model.lr"],
    ),
    "flags": (
        {"package/train.py": _FLAGS, "package/loss.py": "def loss_of(shift): return shift * 2\n"},
        {"amp": mqtune.grid_search([True, False]), "shift": mqtune.grid_search([-1e-05, 3.0])},
        ("loss", "min"),
        lambda config: config["shift"] * 2 + config["amp"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_knows_nothing_of_mqtune_is_tuned_as_it_is(folder: Path, name: str) -> None:
    files, space, (metric, mode), expected = PROGRAMS[name]
    for path, code in files.items():
        written(folder / path, code)

    results = tuned(the_script(name), space, metric, mode)

    assert [each.metrics[metric] for each in results] == [pytest.approx(expected(each.config)) for each in results]
    if name == "forest":
        assert [report.metrics["fold"] for report in results.reports(results.trials[0].id)] == [1, 2, 3]
