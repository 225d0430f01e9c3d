"""Runs a program as its author does, in one process without mqtune's: a loop over configs takes the tuner's place.

``python by_hand.py ROWS CONFIGS PROGRAM ARGUMENT…`` writes into the file ROWS, for each of the CONFIGS (a JSON list), the metrics
that the program reports last, with the number of its reports as ``training_iteration``.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from notebooks import run_notebook

import mqtune


class Loop:
    """Calls a trainable once for each config, each time in a fresh copy of the folder."""

    configs: Sequence[dict[str, Any]] = ()
    rows = Path()
    folder = Path.cwd()

    def __init__(self, trainable: Callable[[dict[str, Any]], object], *_: object, **__: object) -> None:
        self._trainable = trainable

    def run(self) -> None:
        rows = [self._run_one(config) for config in self.configs]
        self.rows.write_text(json.dumps(rows, default=lambda array: array.tolist()))
        # Nothing below the tuner's call has a result to work on.
        sys.exit()

    def _run_one(self, config: dict[str, Any]) -> dict[str, Any]:
        reports: list[dict[str, Any]] = []
        copy = Path(tempfile.mkdtemp(dir=self.rows.parent)) / self.folder.name
        shutil.copytree(self.folder, copy)
        os.chdir(copy)
        mqtune.report = lambda metrics, checkpoint=None: reports.append(metrics)
        self._trainable(dict(config))
        return {**reports[-1], "training_iteration": len(reports)} if reports else {}


if __name__ == "__main__":
    _, rows, configs, program, *arguments = sys.argv
    Loop.rows, Loop.configs = Path(rows), json.loads(configs)
    mqtune.Tuner = Loop  # type: ignore[assignment,misc]
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).resolve().parent)
    if program.endswith(".ipynb"):
        run_notebook(program)
    else:
        runpy.run_path(str(Path(program).resolve()), run_name="__main__")
