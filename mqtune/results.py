from __future__ import annotations
from pathlib import Path
from mqtune.experiment import Experiment
class Results:
    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment = experiment
    def save(self): pass
    @property
    def best(self): return self.experiment.best
