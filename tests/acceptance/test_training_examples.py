"""The examples with training libraries do what they say, where the libraries are."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from attempts import AttemptHere

import mqtune
from mqtune.core.trial import AttemptEnd
from mqtune.results.experiments import saved_experiments
from mqtune.results.results import Results

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
#: Each with what it needs, how many trials are enough, and the most epochs or rounds that one of so many has.
TRAININGS = {
    "train_pytorch.py": ("torch", 2, 27),
    # Its trials wait for others: of three one goes on, after its first epoch to its third.
    "train_lightning.py": ("lightning", 3, 3),
    "train_transformers.py": ("transformers", 2, 9),
    "train_xgboost.py": ("xgboost", 2, 81),
    "train_sklearn.py": ("sklearn", 2, 27),
    "train_torchrun/tune.py": ("torch", 2, 9),
    "train_ddp.py": ("torch", 2, 9),
}
#: These libraries take half a minute to import on a machine that runs ten other programs, and each process of torchrun does so.
PATIENCE_S = 500.0
pytestmark = pytest.mark.timeout(PATIENCE_S + 50)


def environment(folder: Path) -> dict[str, str]:
    """That of an example that is run on this machine alone, and leaves what it leaves in a folder of its own."""
    folder.mkdir()
    return {**os.environ, "MQTUNE_BROKER": "", "TMPDIR": str(folder)}


@pytest.mark.parametrize("script", TRAININGS)
def test_a_training_is_tuned(script: str, tmp_path: Path) -> None:
    library, trials, epochs = TRAININGS[script]
    pytest.importorskip(library)
    left = tmp_path / "tmp"

    done = subprocess.run(
        [sys.executable, EXAMPLES / script, "--trials", str(trials), "--checkpoints", tmp_path / "store"],
        cwd=ROOT, env=environment(left), capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    results = Results.load(saved_experiments()[0])
    best = results.best
    assert re.search(
        rf"^best trial {best.id}: \w+ {best.value:.3f} with {re.escape(str(best.config))}$", done.stdout, re.MULTILINE
    )
    assert max(len(list(results.reports(result.id))) for result in results) == epochs
    assert list((tmp_path / "store").rglob("p-*")), "no checkpoint"
    # PyTorch has a cache for each user there.
    assert [path.name for path in left.iterdir() if not path.name.startswith("torchinductor_")] == []
    # torchrun tells of a stop by a traceback.
    attempts = [attempt for result in results for attempt in result.attempts if attempt.end is not AttemptEnd.STOPPED]
    texts = [done.stderr, *(Path(attempt.stderr_path).read_text() for attempt in attempts)]
    assert not re.search("warning|traceback", "".join(texts), re.IGNORECASE), texts


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, Any]], object]]:
    """The function of the example with PyTorch; what it is warned of is PyTorch's."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(EXAMPLES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield importlib.import_module("train_pytorch").train


def test_a_network_in_pytorch_goes_on_as_if_nothing_had_interrupted_it(
    train: Callable[[dict[str, Any]], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"lr": 0.01, "width": 32, "dropout": 0.2}
    with (
        closing(AttemptHere(tmp_path, trial="whole")) as whole,
        closing(AttemptHere(tmp_path, attempt=1)) as first,
        monkeypatch.context() as patch,
    ):
        whole.run(train, config)
        report = mqtune.report

        def report_and_stop(metrics: dict[str, Any]) -> None:
            report(metrics)
            if len(first.rows()) == 3:
                first.stop()

        patch.setattr(mqtune, "report", report_and_stop)
        assert first.run(train, config).end is AttemptEnd.STOPPED
        patch.undo()
        with closing(AttemptHere(tmp_path, attempt=2, checkpoint=first.checkpoints()[-1])) as second:
            assert second.run(train, config).end is AttemptEnd.COMPLETED
            rows = [*first.rows(), *second.rows()]

        assert [row["training_iteration"] for row in rows] == list(range(1, 28))
        assert [row["accuracy"] for row in rows] == pytest.approx(whole.values("accuracy"))


def test_a_training_by_torchrun_goes_on_after_it_was_killed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = EXAMPLES / "train_torchrun" / "train.py"
    command = [sys.executable, script, "--width", "8", "--st_checkpoint_dir", tmp_path / "state"]
    surroundings = environment(tmp_path / "tmp")

    with subprocess.Popen(
        command, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as first:
        assert first.stdout is not None
        assert epoch_of(first.stdout.readline()) == 1
        # Each process of torchrun is in a session of its own.
        for process in (psutil.Process(first.pid), *psutil.Process(first.pid).children(recursive=True)):
            process.kill()
        seen = [1, *map(epoch_of, first.stdout)]
    second = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=PATIENCE_S)

    assert second.returncode == 0, second.stderr
    begins, *rest = map(epoch_of, second.stdout.splitlines())
    # A state may have been saved that was not printed any more.
    assert begins in (seen[-1] + 1, seen[-1] + 2)
    assert [begins, *rest] == list(range(begins, 10))
    assert [path.name for path in (tmp_path / "tmp").iterdir() if not path.name.startswith("torchinductor_")] == []


def epoch_of(line: str) -> int:
    """Of a line that mqtune reads."""
    mark, _, metrics = line.partition(": ")
    assert mark == "[tune-metric]", line
    return int(json.loads(metrics)["epoch"])
