"""The same trials without a tuner, one after the other in one process, each for as many epochs as the argument says."""

import contextlib
import json
import sys

from benchmarks.training import trial


class Enough(BaseException):
    """The trial has trained for as long as it did under the tuner."""


def bare(index: int, epochs: int) -> None:
    def report(_loss: float, epoch: int) -> None:
        if epoch == epochs:
            raise Enough

    with contextlib.suppress(Enough):
        trial.run(index, report)


for each, trained in json.loads(sys.argv[1]):
    bare(each, trained)
