"""The scripts in examples/ do what they say."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from running import running_worker

import mqtune
import mqtune.cli
from mqtune.backends import EmbeddedServer, find_binary
from mqtune.core.machine import INTERRUPTED_CODE
from mqtune.results.experiments import saved_experiments
from mqtune.results.results import Results

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def test_the_digits_example_is_the_demo():
    # A copy: as a link it would lead out of the folder that is mounted into a container.
    digits = EXAMPLES / "digits.py"
    assert digits.read_text() == Path(mqtune.cli.__file__).with_name("digits.py").read_text()
    assert not digits.is_symlink()


#: Each example with the library that it needs.
SCRIPTS = {
    "digits.py": "sklearn",
    "pbt.py": "sklearn",
    "promotion.py": "sklearn",
    "trainable_class.py": "mqtune",
    "script_trainable/tune_script.py": "mqtune",
    "train_ddp.py": "torch",
    "train_lightning.py": "lightning",
    "train_pytorch.py": "torch",
    "train_sklearn.py": "sklearn",
    "train_torchrun/tune.py": "torch",
    "train_transformers.py": "transformers",
    "train_xgboost.py": "xgboost",
}
#: Runs scripts, each as far as its tuner, and prints the names of the tuners. They share the imports of large libraries.
BEGUN = """
import contextlib, runpy, sys
import mqtune

def begin(tuner):
    print(tuner.name)
    tuner.close()
    sys.exit()

mqtune.Tuner.run = begin
for script in sys.argv[1:]:
    sys.argv, sys.path[0] = [script], script.rpartition("/")[0]
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
"""
#: Runs a script, and presses Ctrl-C once its experiment has begun.
INTERRUPTED = """
import os, runpy, signal, sys
import mqtune

class Interrupt(mqtune.Callback):
    def on_start(self, experiment):
        os.kill(os.getpid(), signal.SIGINT)

options = mqtune.RunOptions(callbacks=[Interrupt()], progress=False)
mqtune.Tuner = lambda *given, tuner=mqtune.Tuner, **more: tuner(*given, **{**more, "run": options, "searcher": "random"})
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_code(code: str, *scripts: Path, exit_code: int = 0) -> str:
    """Run Python code with scripts as its arguments, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *scripts],
        cwd=ROOT,
        env={**os.environ, "MQTUNE_BROKER": ""},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == exit_code, done.stderr
    return done.stdout


def script_of_readme(folder: Path) -> Path:
    """Write README's script into a folder, as a reader does."""
    code = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert code is not None
    (script := folder / "quickstart.py").write_text(code[1])
    return script


def test_each_example_names_its_experiment_so_that_the_same_command_continues():
    scripts = [EXAMPLES / name for name, library in SCRIPTS.items() if find_spec(library) is not None]

    names = run_code(BEGUN, *scripts).split()

    assert len(set(names)) == len(scripts)
    # A default name has a number, and each run a new one.
    assert [name for name in names if re.search(r"-\d+$", name)] == []


#: A function, and a script that runs in an interpreter of its own. The definition names a class as it names a function.
@pytest.mark.parametrize("name", ["README.md", "script_trainable/tune_script.py"])
def test_after_ctrl_c_the_same_command_continues(name: str, tmp_path: Path):
    script = EXAMPLES / name if name in SCRIPTS else script_of_readme(tmp_path)

    texts = [run_code(INTERRUPTED, script, exit_code=INTERRUPTED_CODE) for _ in range(2)]

    assert texts[0] == texts[1]
    [folder] = saved_experiments()
    assert f"Progress is saved in {folder}." in texts[0]
    assert Results.load(folder).outcome == "interrupted"


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("two")
    options = ("--gpus", "0", "--slots", "2")
    with (
        EmbeddedServer.start(folder / "server", binary=find_binary()) as server,
        running_worker(server.url, folder / "one.log", *options, name="one", code_root=ROOT),
        running_worker(server.url, folder / "two.log", *options, name="two", code_root=ROOT),
    ):
        yield server.url


#: Runs a script with at most this number of trials.
FEWER_TRIALS = """
import runpy, sys
import mqtune

most = int(sys.argv.pop(1))
mqtune.Tuner = lambda *given, tuner=mqtune.Tuner, **more: tuner(*given, **{**more, "max_trials": most, "searcher": "random"})
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_example(*command: str, broker: str = "", trials: int | None = None) -> tuple[str, Results]:
    """Run an example from the repository's root, and return what it printed, and its results."""
    begin = [] if trials is None else ["-c", FEWER_TRIALS, str(trials)]
    done = subprocess.run(
        [sys.executable, *begin, EXAMPLES / command[0], *command[1:]],
        cwd=ROOT,
        env={**os.environ, "MQTUNE_BROKER": broker},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    newest = saved_experiments()[0]
    return done.stdout, Results.load(newest)


def test_promoted_trials_go_on_where_they_were_on_whichever_worker_is_free(two_workers: str):
    text, results = run_example("promotion.py", "--broker", two_workers, trials=9)

    workers = {result.id: [attempt.worker for attempt in result.attempts] for result in results}
    assert len(set(itertools.chain(*workers.values()))) == 2, workers
    moved, resumes = (
        sum(len(set(each)) > 1 for each in workers.values()),
        sum(len(each) - 1 for each in workers.values()),
    )
    assert resumes
    assert f"{resumes} resumes; {moved} trials ran on more than one worker" in text
    for result in results:
        assert " → ".join(workers[result.id]) in text
        # Each epoch is trained once: a resumed trial repeats no epoch of its checkpoint.
        epochs = [report.metrics["training_iteration"] for report in results.reports(result.id)]
        assert epochs == list(range(1, len(epochs) + 1))


def test_a_population_goes_on_from_the_checkpoints_of_its_best(two_workers: str, tmp_path: Path):
    text, results = run_example("pbt.py", str(tmp_path / "store"), broker=two_workers)

    copies = [(result.id, attempt) for result in results for attempt in result.attempts if attempt.source]
    assert copies
    for trial, attempt in copies:
        # A source that has ended has left nothing to train.
        first = next((r for r in results.reports(trial) if r.attempt == attempt.number), None)
        assert first is None or first.metrics["training_iteration"] > 1
    assert {path.name for path in (tmp_path / "store").rglob("net.npz")} == {"net.npz"}
    accuracy = re.search(r"held out: ([\d.]+)%; it was trained with$", text, re.MULTILINE)
    assert accuracy
    assert float(accuracy[1]) > 85
    assert re.search(r"^  lr=[\d.e-]+ decay=[\d.e-]+ from epoch 1, in trial \d{4}$", text, re.MULTILINE)


def test_a_script_that_knows_nothing_of_mqtune_is_tuned_on_this_machine():
    text, results = run_example("script_trainable/tune_script.py", trials=5)

    assert not results.errors
    assert len(results) == text.count("\ntrial") + 1 == 5
    assert text.splitlines()[-1].startswith("best: train.py --lr ")
    assert results.best.metrics["step"] == 27
