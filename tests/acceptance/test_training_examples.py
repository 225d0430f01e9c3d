"""The examples with training libraries do what they say, where the libraries are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("script", TRAININGS)
def test_a_training_is_tuned(script: str, tmp_path: Path) -> None:
    library, trials, epochs = TRAININGS[script]
    pytest.importorskip(library)
    # What it leaves, it leaves here.
    (left := tmp_path / "tmp").mkdir()
    environment = {**os.environ, "MQTUNE_BROKER": "", "TMPDIR": str(left)}

    done = subprocess.run(
        [sys.executable, EXAMPLES / script, "--trials", str(trials), "--checkpoints", tmp_path / "store"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
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
