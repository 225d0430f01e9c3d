"""Progress: a list says of each experiment how far it has come."""

from __future__ import annotations

import optuna
import pytest

import mqtune
from mqtune import FIFO, RandomSearcher, Space
from mqtune.core.registry import described
from mqtune.integrations import OptunaSearcher
from mqtune.results import deciders_of
from mqtune.schedulers import Scheduler
from mqtune.search import Nobody, Searcher

SPACE = Space({"x": mqtune.uniform(0, 1), "seed": mqtune.grid_search([1, 2])})


class Mine(FIFO):
    """A scheduler of a user's own."""


@pytest.mark.parametrize(
    ("searcher", "scheduler", "said"),
    [
        (RandomSearcher(SPACE, 1), FIFO(), "searcher random; no scheduler, each trial runs to its end"),
        (OptunaSearcher(), mqtune.ASHA(9), "searcher tpe; scheduler asha"),
        (OptunaSearcher(optuna.samplers.RandomSampler()), Mine(), "searcher RandomSampler; scheduler Mine"),
        (mqtune.Repeater("seed", "tpe"), mqtune.ASHA(9), "searcher repeater of tpe; scheduler asha"),
        (Nobody(), FIFO(), "no searcher, trials are added; no scheduler, each trial runs to its end"),
    ],
)
def test_who_decides_is_said_in_words(searcher: Searcher, scheduler: Scheduler, said: str) -> None:
    assert str(deciders_of({"searcher": described(searcher), "scheduler": described(scheduler)})) == said
