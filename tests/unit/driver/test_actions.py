"""What the driver does to trials: checked first, then journaled, then carried out; and trials that are abandoned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import NAME, Bench, Obedient

from mqtune import ASHA, FIFO, ExperimentPlateau, GridSearcher, PointsFirst, RandomSearcher, Space, choice, grid_search
from mqtune.core.errors import ConfigurationError, DriverFenced
from mqtune.core.events import DriverStarted, ExperimentEnded
from mqtune.core.trial import (
    Action,
    Attempt,
    AttemptEnd,
    CheckpointId,
    Config,
    Decision,
    Report,
    SavedCheckpoint,
    Trial,
    TrialId,
    TrialStatus,
)
from mqtune.core.version import __version__
from mqtune.driver import AnswerQuestion
from mqtune.journal import MemoryJournal
from mqtune.results import ranked
from mqtune.schedulers import Fork, Release, Resume, Scheduler, Wait

ONE, TWO, THREE = TrialId("0001"), TrialId("0002"), TrialId("0003")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Two slots, each with a trial that a worker runs."""
    return Bench(tmp_path).step().start(ONE).start(TWO)


def test_a_config_that_is_too_large_is_refused_by_its_largest_value_before_anything_is_journaled(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, space=None, scheduler=FIFO, max_trials=None)
    events = len(bench.events())

    with pytest.raises(
        ConfigurationError, match=r"trial 0001 has 2,\d{3},\d{3} bytes .* most is 1,048,576; .* is 'text' with 2,"
    ):
        bench.hand.add({"lr": 0.1, "text": "x" * 2 * 2**20})

    assert (len(bench.events()), bench.experiment.trials) == (events, {})


@pytest.mark.parametrize(
    "command",
    [
        lambda b: b.hand.add({}),
        lambda b: b.hand.trial(ONE).stop(),
        lambda b: b.hand.trial(TWO).abandon("no"),
        lambda b: b.hand.trial(ONE).save(),
        lambda b: b.driver.requeue_all("Ctrl-C"),
        lambda b: b.driver.end("finished", ""),
    ],
)
def test_a_driver_that_was_replaced_changes_nothing_any_more(bench: Bench, command: Callable[[Bench], Any]) -> None:
    state = bench.server.experiments[NAME]
    state.driver_until = 0.0
    MemoryJournal(bench.server, NAME).lock("another", "", 60.0)
    before, events = repr(bench.experiment.trials), len(bench.events())

    with pytest.raises(DriverFenced):
        command(bench)

    assert (repr(bench.experiment.trials), len(bench.events())) == (before, events)


# What a slot is used for.


def test_a_scheduler_resumes_a_paused_trial_with_another_config_from_another_trials_checkpoint(bench: Bench) -> None:
    donor = bench.save(TWO)
    own = bench.save(ONE)
    bench.hand.trial(ONE).pause()
    bench.scheduler.choices.append(Resume(ONE, "exploit 0002", {"lr": 0.5, "depth": 3}, TWO))
    bench.end(ONE)

    attempt = bench.trial().attempt
    assert (attempt.number, attempt.checkpoint, attempt.source, attempt.config["lr"]) == (2, donor, TWO, 0.5)
    assert (bench.trial().reason, bench.trial().history[-1].by) == ("exploit 0002", "scheduler")
    assert (bench.trial().checkpoint, list(bench.trial().checkpoints)) == (donor, [own])
    assert bench.start(ONE).grant.assignment.checkpoint == donor


def test_a_scheduler_resumes_from_the_checkpoint_that_it_names_while_that_is_there(bench: Bench) -> None:
    donor = bench.save(TWO)
    bench.report(ONE, 1.0)
    bench.scheduler.decisions[ONE, 2] = Decision(Action.PAUSE, "exploit 0002", TWO)
    bench.report(ONE, 1.0)
    newest = bench.save(TWO)
    bench.scheduler.choices.append(Resume(ONE, "exploit 0002", None, TWO, donor))
    bench.end(ONE)
    assert (bench.trial().attempt.checkpoint, bench.trial().attempt.source) == (donor, TWO)

    bench.start(ONE)
    bench.hand.trial(ONE).pause()
    gone = CheckpointId("m-0002-1-99")
    bench.scheduler.choices.append(Resume(ONE, "exploit 0002", None, TWO, gone))
    bench.end(ONE)
    assert (bench.trial().attempt.checkpoint, bench.trial().attempt.source) == (newest, TWO)


def test_a_scheduler_forks_a_trial(bench: Bench) -> None:
    donor = bench.save(TWO)
    bench.scheduler.choices.append(Fork(TWO, {"lr": 0.5, "depth": 3}, "as good"))
    bench.report(ONE, 1.0)
    bench.end(ONE)

    fork = bench.trial(THREE)
    assert (fork.parent, fork.attempt.checkpoint, fork.config["lr"]) == (TWO, donor, 0.5)
    assert bench.trial(TWO).status is TrialStatus.RUNNING


def test_a_scheduler_releases_a_paused_trial_and_the_slot_is_asked_about_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_trials=3).step().start(ONE).start(TWO)
    bench.hand.trial(ONE).pause()
    bench.scheduler.choices += [Release(ONE, "not promoted"), Wait("for others")]
    bench.end(ONE)

    assert (bench.trial().status, bench.trial().reason) == (TrialStatus.EARLY_STOPPED, "not promoted")
    assert ("end", ONE) in bench.scheduler.heard
    assert bench.journal.waits() == "for others"


def test_an_added_trial_goes_on_from_the_checkpoint_of_a_source_that_has_ended_meanwhile(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_trials=3).step().start(ONE).start(TWO)
    bench.report(ONE, 0.1)
    saved = bench.save(TWO)
    bench.report(TWO, 1.0)
    bench.driver.steer("add", "", {"config": {"lr": 0.5}, "source": TWO})
    bench.step()

    # It is not the best one, and so its dicts would go with it.
    bench.end(TWO)

    assert bench.step().trial(THREE).attempt.checkpoint == saved


# Again.


def test_a_lost_trial_goes_on_from_its_own_checkpoint_once_it_has_one(bench: Bench) -> None:
    bench.save(TWO)
    bench.hand.add({}, source=TWO)
    bench.backend.slots = 3
    bench.start(THREE)
    own = bench.save(THREE)
    bench.lose(THREE)

    attempt = bench.trial(THREE).attempt
    assert (attempt.checkpoint, attempt.source) == (own, None)


# In lockstep.


def test_in_lockstep_a_trial_whose_report_ends_it_is_told_so_and_never_to_go_on(tmp_path: Path) -> None:
    def stopping() -> Obedient:
        scheduler = Obedient()
        scheduler.decisions[ONE, 1] = Decision(Action.STOP, "bad")
        return scheduler

    bench = Bench(tmp_path, lockstep=True, scheduler=stopping).step().start(ONE)
    bench.report(ONE, 3.0)

    for _ in range(2):
        assert bench.told(ONE) == "stop"
        assert not bench.server.experiments[NAME].trials[ONE].orders
        # The next driver says nothing else.
        bench.begin()


def test_in_lockstep_an_answer_to_a_report_stays_when_that_is_decided_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lockstep=True).step().start(ONE)
    bench.driver.listen_to_reports(lambda _, report: bench.driver.carry_out(AnswerQuestion(report, "yes")))

    bench.report(ONE, 1.0)

    assert bench.told(ONE).startswith("go:1:")


# The experiment.


def test_each_driver_says_that_it_begins_with_which_version_and_once_that_it_ends(bench: Bench) -> None:
    bench.begin()
    for _ in range(2):
        bench.driver.end("finished", "all done")

    assert [(event.driver, event.version) for event in bench.of(DriverStarted)] == [("driver", __version__)] * 2
    assert [(event.outcome, event.reason) for event in bench.of(ExperimentEnded)] == [("finished", "all done")]


FINITE = Space({"depth": choice([1, 2, 3])})

GRID = Space({"depth": grid_search([1, 2, 3])})


def trial_of(id_: str, config: Config | None = None) -> Trial:
    trial = Trial(TrialId(id_), config or {})
    trial.attempts.append(Attempt(1, 0.0, config or {}))
    return trial


def told(scheduler: Scheduler, trial: Trial, value: float, time: int = 1) -> Decision:
    """Return what a scheduler says to a report; it comes with a checkpoint."""
    checkpoint = CheckpointId(f"m-{trial.id}-1-{time}")
    trial.checkpoint, trial.checkpoints[checkpoint] = checkpoint, SavedCheckpoint(checkpoint, 0.0, {})
    return scheduler.on_report(trial, Report(trial.id, 1, time, 0.0, {"loss": value, "training_iteration": time}))


# The fold and the results.


def test_a_trial_that_is_abandoned_is_not_the_best_one_and_one_that_is_revoked_may_be(tmp_path: Path) -> None:
    bench = Bench(tmp_path).step().start(ONE).start(TWO)
    bench.report(ONE, 0.1)
    bench.report(TWO, 0.5)

    bench.hand.trial(ONE).abandon("its data were wrong")
    assert bench.hand.results().best.id == TWO, "while its process still runs"
    bench.end(ONE)

    assert bench.experiment.best is bench.trial(TWO)
    assert bench.replayed().best is not None
    assert [bench.hand.results().best_trial(scope).id for scope in ("all", "last", "avg")] == [TWO] * 3
    assert [trial.id for trial in ranked(bench.experiment)][-1] == ONE
    bench.end(TWO, AttemptEnd.STOPPED)
    assert bench.experiment.best is bench.trial(TWO), "Celery's revoke stops it"


def test_everybody_is_told_once_and_before_the_end(tmp_path: Path) -> None:
    """Also by a driver that takes over, and for whichever way a trial comes to be abandoned."""
    heard: list[tuple[str, str]] = []

    class Hearing(ASHA):
        def on_abandon(self, trial: Trial) -> None:
            heard.append((trial.id, "abandoned"))

        def on_trial_end(self, trial: Trial) -> None:
            heard.append((trial.id, "ended"))

    bench = Bench(tmp_path, slots=3, max_trials=3, scheduler=lambda: Hearing(9)).step().start(ONE).start(TWO)
    bench.hand.trial(ONE).abandon("no")
    bench.end(ONE)
    bench.end(TWO, AttemptEnd.STOPPED)
    bench.hand.trial(THREE).abandon("no")

    # TWO is stopped from outside, which abandons nothing.
    expected = [(ONE, "abandoned"), (ONE, "ended"), (TWO, "ended"), (THREE, "abandoned"), (THREE, "ended")]
    assert heard == expected
    heard.clear()
    bench.replayed()
    assert heard == expected


def test_a_plateau_is_one_of_trials_that_were_not_abandoned() -> None:
    rule = ExperimentPlateau(top=2, std=0.0)
    rule.bind("loss", "min")
    for id_, value in ((ONE, 0.1), (TWO, 0.1), (THREE, 0.3), ("0004", 0.3)):
        rule.stops_trial(trial_of(id_), Report(TrialId(id_), 1, 1, 0.0, {"loss": value}))
    assert rule.stops_experiment(None, 0.0)  # type: ignore[arg-type]

    rule.on_abandon(trial_of(ONE))
    assert not rule.stops_experiment(None, 0.0)  # type: ignore[arg-type]
    rule.on_abandon(trial_of(TWO))
    assert rule.stops_experiment(None, 0.0), "the next best ones are alike"  # type: ignore[arg-type]


# Searchers.


@pytest.mark.parametrize("space", [FINITE, GRID])
def test_random_search_that_starts_over_suggests_no_abandoned_config_and_ends_without_others(space: Space) -> None:
    searcher = RandomSearcher(space, 3)
    first = searcher.suggest(ONE)
    assert first is not None

    searcher.on_abandon(trial_of(ONE, first))

    suggested = [searcher.suggest(ONE) for _ in range(20)]
    assert {config["depth"] for config in suggested if config} == {1, 2, 3} - {first["depth"]}
    for depth in (1, 2, 3):
        searcher.on_abandon(trial_of(ONE, {"depth": depth}))
    assert searcher.suggest(ONE) is None


def test_points_and_grid_search_pass_over_what_was_abandoned_or_is_tried_anyway() -> None:
    searcher = PointsFirst([{"depth": 1}, {"depth": 1}], GridSearcher(GRID), space=GRID)
    searcher.avoid({"depth": 2})
    searcher.on_abandon(trial_of(ONE, searcher.suggest(ONE)))

    assert [searcher.suggest(ONE), searcher.suggest(ONE)] == [{"depth": 3}, None]
