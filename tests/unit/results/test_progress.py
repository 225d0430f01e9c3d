"""Progress: a list says of each experiment how far it has come."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from book import Book

import mqtune
from mqtune import FIFO, RandomSearcher, Results, Space
from mqtune.core.registry import described
from mqtune.core.trial import AttemptEnd
from mqtune.integrations import OptunaSearcher
from mqtune.results import deciders_of, progress_of, updated_at
from mqtune.schedulers import Scheduler
from mqtune.search import Nobody, Searcher


def test_the_best_so_far_is_of_trials_that_may_be_the_best(tmp_path: Path) -> None:
    book = Book(tmp_path / "mine", metric=["loss", "size <= 2"])
    for trial, loss, size in (("0001", 3.0, 1), ("0002", 1.0, 9), ("0003", 0.5, 1), ("0004", 2.0, 1)):
        book.stage(trial)
        book.report(trial, {"loss": loss, "size": size})
        if trial == "0003":
            book.decide(trial, "abandon")
        book.end(trial, AttemptEnd.STOPPED if trial == "0003" else AttemptEnd.COMPLETED)

    results = Results.load(book.save())
    found = progress_of(results.experiment, results.definition)

    assert found["best_so_far"] == [3.0, 2.0]
    assert (found["ended"], found["planned"]) == (4, 4)
    assert found["updated_at"] == updated_at(results.experiment) == results.experiment.trials["0004"].history[-1].at


def test_before_its_first_trial_an_experiment_was_updated_when_it_was_created(tmp_path: Path) -> None:
    experiment = Results.load(Book(tmp_path / "mine").save()).experiment

    assert updated_at(experiment) == experiment.created_at


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
