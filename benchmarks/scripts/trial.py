"""A Syne Tune trial: one of the bodies, reporting through Syne Tune's Reporter."""

import argparse

from syne_tune import Reporter

from benchmarks import bodies

parser = argparse.ArgumentParser()
parser.add_argument("--work", required=True)
parser.add_argument("--folder", required=True)
parser.add_argument("--index", type=int, required=True)
parser.add_argument("--reports", type=int, required=True)
parser.add_argument("--parties", type=int, required=True)
options, _ = parser.parse_known_args()

reporter = Reporter()


def report(metrics):
    reporter(**metrics)


bodies.run(options.work, report, options.folder, options.index, reports=options.reports, parties=options.parties)
