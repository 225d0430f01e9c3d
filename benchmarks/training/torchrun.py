"""A script that torchrun runs in two processes, which train together with gloo; its output has the losses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.training.epochs import Config, Epochs

SCRIPT: Final = Path(__file__).parent / "scripts" / "ranks.py"


def train(config: Config, epochs: Epochs) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    process = subprocess.Popen([*command, json.dumps(config)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            epochs.note(**json.loads(line))
        if code := process.wait():
            raise RuntimeError(f"torchrun ended with exit code {code}")
    finally:
        # torchrun ends its processes when it is told to end.
        process.terminate()
        process.wait()
        process.stdout.close()
