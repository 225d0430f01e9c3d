"""Programs without a line of mqtune are tuned by the scripts of docs/how-to/tune.md."""

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

#: Its settings are variables. A file replaces them, and so does ``--name=value`` with a value of the same type.
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


def test_a_module_of_a_package_is_tuned_as_it_is(folder: Path) -> None:
    written(folder / "package" / "train.py", _FLAGS)
    written(folder / "package" / "loss.py", "def loss_of(shift): return shift * 2\n")
    names: dict[str, Any] = {"mqtune": mqtune}
    exec(compile(_SCRIPTS, "docs/how-to/tune.md", "exec"), names)
    space = {"amp": mqtune.grid_search([True, False]), "shift": mqtune.grid_search([-1e-05, 3.0])}

    results = mqtune.Tuner(
        names["flags"], space, metric="loss", mode="min", name="calls", backend=mqtune.Local(slots=2), run=mqtune.RunOptions(progress=False)
    ).run()  # fmt: skip

    assert [each.error for each in results if each.status is not mqtune.TrialStatus.COMPLETED] == []
    assert [each.value for each in results] == [each.config["shift"] * 2 + each.config["amp"] for each in results]
