"""Tunes a script: each trial is a run of it, with the config as its arguments.

train.py knows nothing of mqtune and prints its metrics; train_with_report.py calls mqtune.report. A trial that ASHA
stops gets SIGTERM.

Run it: python examples/script_trainable/tune_script.py, or with the other script:
python examples/script_trainable/tune_script.py train_with_report.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import mqtune

if __name__ == "__main__":
    script = Path(__file__).with_name(sys.argv[1] if len(sys.argv) > 1 else "train.py")
    results = mqtune.Tuner(
        script,
        {"lr": mqtune.loguniform(1e-3, 1.0), "steps": 27},
        metric="loss",
        mode="min",
        scheduler=mqtune.ASHA(max_t=27, time_attr="step"),
        max_trials=12,
        seed=1,
        name=f"script-{script.stem}",
    ).run()
    for result in results:
        print(f"trial {result.id} {result.status.value:13} lr={result.config['lr']:.4f} loss={result.value:.3g}")
    print(f"best: {script.name} --lr {results.best.config['lr']:.4f} --steps {results.best.config['steps']}")
