"""A trial of Syne Tune, which is a script."""

import argparse

from syne_tune import Reporter

from benchmarks.training import trial

parser = argparse.ArgumentParser()
parser.add_argument("--index", type=int, required=True)
options, _ = parser.parse_known_args()
reporter = Reporter()
trial.run(options.index, lambda loss, epoch: reporter(loss=loss, epoch=epoch))
