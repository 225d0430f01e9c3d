"""A trial of mqtune that is a script."""

import argparse

import mqtune
from benchmarks.training import trial

parser = argparse.ArgumentParser()
parser.add_argument("--index", type=int, required=True)
trial.run(parser.parse_args().index, lambda loss, epoch: mqtune.report({"loss": loss, "epoch": epoch}))
