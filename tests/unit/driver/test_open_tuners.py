"""Tuners that somebody else drives: without a space, with any configs, open until they are finished."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from bench import NAME, Bench, Hand
from simulation import FOR_EVER_S, Killed, Simulation, curve as epochs

import mqtune
from mqtune import FIFO
from mqtune.core.errors import ConfigurationError, ExperimentFinished, SpaceError
from mqtune.core.events import DecisionTaken
from mqtune.core.trial import CheckpointId, TrialStatus
from mqtune.driver import Driver

ONE = "0001"


def curve(config: dict[str, Any]) -> Any:
    for step in range(1, config.get("steps", 3) + 1):
        yield 1.0, {"loss": 1.0 / step, "latency": float(step), "step": step}


def opened(backend: mqtune.Simulated | None = None, **options: Any) -> mqtune.Tuner:
    backend = mqtune.Simulated(curve, slots=2, keep_journal=True) if backend is None else backend
    return mqtune.Tuner(curve, backend=backend, name="open", run=mqtune.RunOptions(progress=False), **options)


def drive_until(tuner: mqtune.Tuner, trial: mqtune.TrialHandle | Any, status: TrialStatus) -> None:
    for _ in range(100):
        if trial.status is status:
            return
        tuner.step()
    pytest.fail(f"trial {trial.id} is {trial.status}")


def test_what_was_finished_is_finished_for_the_next_driver_until_a_trial_is_added_and_what_was_closed_is_open() -> None:
    backend = mqtune.Simulated(curve, keep_journal=True)
    first = opened(backend)
    first.add({}, key="one")
    first.finish()
    first.close()

    second = opened(backend)

    assert second.is_finished
    with pytest.raises(ExperimentFinished):
        second.step()
    drive_until(second, second.add({}, key="two"), TrialStatus.COMPLETED)
    second.close()
    third = opened(backend)
    third.step()
    assert (third.is_finished, third.results().outcome) == (False, "")
    assert [trial.key for trial in third.get_trials()] == ["one", "two"]
    assert third.finish().outcome == "finished"
    third.close()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"max_trials": 3}, "max_trials=3 needs a space"),
        ({"searcher": "random"}, "searcher='random' needs a space"),
        ({"mode": "min"}, "mode='min' needs a metric"),
        ({"stop": {"loss": 1}}, "stop={'loss': 1} needs a metric"),
        ({"scheduler": mqtune.ASHA(max_t=9)}, "needs a metric; give one, or leave scheduler out"),
        ({"metric": "loss"}, "mode=None: give 'min' or 'max'"),
        ({"metric": "", "mode": "min", "space": {}}, "metric='' is not a name"),
        ({"space": {}}, "metric=None: give the key"),
    ],
)
def test_what_goes_by_something_that_was_left_out_is_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        opened(**options)


@pytest.mark.parametrize("config", [{"x": object()}, {"x": {1: 2}}, [1]])
def test_a_config_that_no_worker_can_be_sent_is_refused(config: Any) -> None:
    tuner = opened()

    with pytest.raises(SpaceError):
        tuner.add(config)

    assert tuner.get_trials() == []
    tuner.close()


def begun(folder: Path, **options: Any) -> Bench:
    """An open experiment with a trial that a worker runs."""
    bench = Bench(folder, space=None, scheduler=FIFO, max_trials=None, **options)
    bench.hand.add({"lr": 1.0})
    bench.start(ONE).is_away = True
    return bench


def test_a_decision_is_journaled_at_the_report_in_hand_and_later_ones_are_late(tmp_path: Path) -> None:
    bench = begun(tmp_path)
    bench.report(ONE, 3.0, 2.0, 1.0)

    assert [bench.driver.next_report(0).sequence for _ in range(2)] == [1, 2]
    bench.hand.trial(ONE).pause("enough")
    assert bench.driver.next_report(0) is None

    (decision,) = bench.of(DecisionTaken)
    assert (decision.sequence, decision.cursor.reports, decision.by) == (2, 2, "user")
    assert (bench.trial().last_metrics["loss"], bench.trial().late_reports) == (2.0, 1)
    living = repr(bench.experiment.trials)
    bench.begin()
    assert bench.driver.next_report(0) is None
    assert repr(bench.experiment.trials) == living


def test_who_looks_ahead_still_decides_on_the_report_in_hand(tmp_path: Path) -> None:
    bench = begun(tmp_path)
    other = bench.hand.add({"lr": 2.0}).id
    bench.start(other)
    bench.driver.next_report(0)
    bench.report(ONE, 5.0, 4.0, 3.0)
    bench.report(other, 2.0, 1.0)
    bench.end(other)
    bench.report(ONE, 1.0)

    def ahead(count: int = 9) -> list[tuple[str, int]]:
        return [(report.trial, report.sequence) for report in bench.driver.reports_ahead(count)]

    assert ahead() == []
    bench.driver.next_report(0)
    assert (ahead(1), ahead()) == ([(ONE, 2)], [(ONE, 2), (ONE, 3), (other, 1), (other, 2)])
    bench.driver.next_report(0)
    assert bench.trial().reports == 2
    bench.hand.trial(ONE).pause()
    assert bench.of(DecisionTaken)[-1].cursor.reports == 2
    assert ahead() == [(other, 1), (other, 2)]
    assert [bench.driver.next_report(0).sequence for _ in range(2)] == [1, 2]
    assert ahead() == []


def test_in_lockstep_a_trial_goes_on_with_the_next_call_unless_it_was_told_to_end(tmp_path: Path) -> None:
    bench = begun(tmp_path, lockstep=True)
    bench.report(ONE, 3.0)
    assert bench.driver.next_report(0).sequence == 1
    assert released(bench) == 0

    assert bench.driver.next_report(0) is None
    assert released(bench) == 1

    bench.report(ONE, 2.0)
    bench.driver.next_report(0)
    # The next driver lets nobody go on whose report it has not returned.
    bench.begin()
    assert [bench.driver.next_report(0).sequence for _ in range(2)] == [1, 2]
    assert released(bench) == 1
    bench.driver.next_report(0)
    assert released(bench) == 2

    bench.report(ONE, 1.0)
    bench.driver.next_report(0)
    bench.hand.trial(ONE).stop()
    bench.driver.next_report(0)
    assert bench.told(ONE) == "stop"


def released(bench: Bench) -> int:
    """The report up to which the trial may go on."""
    return int(bench.told(ONE).partition("go:")[2] or 0)


def paused_at_the_second_of_three(bench: Bench) -> list[str]:
    """Pause the trial at its second report, when it has saved with three; return its checkpoints."""
    names = []
    for loss in (3.0, 2.0, 1.0):
        names.append(bench.new_checkpoint(ONE))
        bench.worker.put_checkpoint(bench.claims[ONE], CheckpointId(names[-1]), b"state")
        bench.report(ONE, loss, checkpoint=names[-1])
    bench.driver.next_report(0)
    bench.driver.next_report(0)
    bench.hand.trial(ONE).pause()
    bench.driver.next_report(0)
    bench.end(ONE)
    bench.driver.next_report(0)
    assert bench.trial().status is TrialStatus.PAUSED
    return names


@pytest.mark.parametrize("meanwhile", ["", "another driver", "Redis has lost it"])
def test_a_trial_goes_on_from_what_it_had_at_the_report_that_was_decided_on(tmp_path: Path, meanwhile: str) -> None:
    bench = begun(tmp_path)
    _, decided, late = paused_at_the_second_of_three(bench)
    if meanwhile == "Redis has lost it":
        del bench.server.experiments[NAME].checkpoints[decided]
        # A later one would not do.
        decided = ""
    if meanwhile:
        bench.begin()
        assert bench.driver.next_report(0) is None
    assert list(bench.trial().checkpoints)[-1] == late

    bench.hand.trial(ONE).resume(checkpoint="decided")

    assert (bench.trial().attempt.checkpoint, bench.trial().attempt.number) == (decided, 2)
    assert bench.trial().pause_point is None
    bench.start(ONE)
    assert bench.grant.assignment.checkpoint == decided


@pytest.mark.parametrize("in_hand", [True, False])
def test_without_a_checkpoint_at_that_report_it_begins_from_scratch(tmp_path: Path, in_hand: bool) -> None:
    bench = begun(tmp_path)
    bench.report(ONE, 3.0)
    if in_hand:
        bench.driver.next_report(0)
    else:
        bench.driver.step(0)
    bench.hand.trial(ONE).pause()
    bench.save(ONE)
    bench.driver.next_report(0)
    bench.end(ONE)
    bench.driver.next_report(0)
    assert bench.trial().checkpoint

    if in_hand:
        bench.hand.trial(ONE).resume({"lr": 2.0}, checkpoint="decided")
        assert (bench.trial().attempt.checkpoint, bench.trial().config) == ("", {"lr": 2.0})
        return
    with pytest.raises(ConfigurationError, match="trial 0001 was not paused on a report that next_report returned"):
        bench.hand.trial(ONE).resume(checkpoint="decided")
    assert bench.trial().status is TrialStatus.PAUSED


def promote(driver: Driver, handed: set[tuple[str, int, int]]) -> bool:
    """A loop of somebody else's that remembers nothing: each trial pauses at epoch 2, and goes on from there to its end."""
    hand = Hand(driver)
    for number in range(3):
        hand.add({"lr": number / 10}, key=str(number))
    report = driver.next_report(FOR_EVER_S)
    if report is not None:
        epoch = report.metrics["training_iteration"]
        handed.add((report.trial, report.attempt, epoch))
        if epoch == 2:
            hand.trial(report.trial).pause()
    for trial in hand.get_trials(TrialStatus.PAUSED):
        hand.trial(trial).resume(checkpoint="decided")
    return all(trial.status is TrialStatus.COMPLETED for trial in hand.get_trials())


@pytest.mark.parametrize("lockstep", [False, True])
def test_every_epoch_comes_once_in_its_attempt_at_whatever_write_a_driver_is_killed(lockstep: bool) -> None:
    expected = {(f"{n:04d}", 1 + (epoch > 2), epoch) for n in (1, 2, 3) for epoch in range(1, 6)}
    for kill_at in range(1, 1000, 6):
        workers = mqtune.Simulated(epochs(5), slots=2, keep_journal=True, decision_delay_s=2.5)
        simulation = Simulation(workers, is_open=True, lockstep=lockstep)
        handed: set[tuple[str, int, int]] = set()
        was_killed = False
        for kill in (kill_at, 0):
            with contextlib.suppress(Killed):
                driver = simulation.driver(kill_at=kill)
                while not promote(driver, handed):
                    pass
                break
            was_killed = True
        assert handed == expected, kill_at
        if not was_killed:
            return
    pytest.fail("it never ends")
