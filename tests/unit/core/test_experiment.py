from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import InvalidTransition
from mqtune.core.events import (
    START,
    AttemptEnded,
    AttemptStarted,
    DecisionTaken,
    ExperimentCreated,
    ExperimentEnded,
    Reports,
    RequestAnswered,
    Requested,
    TrialClosed,
    TrialStaged,
)
from mqtune.core.experiment import ANSWERED_COUNT, LOST_BUDGET, Experiment
from mqtune.core.objective import Mode
from mqtune.core.trial import DEVICE_BROKEN, Action, AttemptEnd, Decision, Intent, Report, Trial, TrialId, TrialStatus

ONE, TWO, THREE = TrialId("0001"), TrialId("0002"), TrialId("0003")


class Story:
    """An experiment, and short words for what happens to it."""

    def __init__(self, *, mode: Mode = "min", max_failures: int = 0, max_lost: int = LOST_BUDGET) -> None:
        self.experiment = Experiment("x", metric="loss", mode=mode, max_failures=max_failures, max_lost=max_lost)
        self.sequence = 0

    def trial(self, trial: TrialId = ONE) -> Trial:
        return self.experiment.trials[trial]

    def stage(self, trial: TrialId = ONE, attempt: int = 1, reason: str = "", **config: Any) -> Story:
        self.experiment.apply(
            TrialStaged(trial=trial, attempt=attempt, config=config, at=10.0, cursor=START, reason=reason)
        )
        return self

    def start(self, trial: TrialId = ONE, attempt: int = 1, device: str = "0") -> Story:
        self.experiment.apply(
            AttemptStarted(trial=trial, attempt=attempt, worker="w@a", host="a", devices=[device, "1"], at=11.0)
        )
        self.sequence = 0
        return self

    def run(self, trial: TrialId = ONE, attempt: int = 1) -> Story:
        return self.stage(trial, attempt).start(trial, attempt)

    def report(self, *values: Any, trial: TrialId = ONE, attempt: int = 1, **others: Any) -> Story:
        for value in values:
            self.sequence += 1
            metrics = {"loss": value, **others}
            self.experiment.apply_report(Report(trial, attempt, self.sequence, 12.0 + self.sequence, metrics))
        return self

    def decide(
        self,
        intent: Intent = Intent.STOP,
        action: str = "stop",
        reason: str = "rung 3",
        *,
        trial: TrialId = ONE,
        attempt: int = 1,
    ) -> Story:
        self.experiment.apply(
            DecisionTaken(
                trial=trial,
                attempt=attempt,
                sequence=1,
                action=action,
                intent=intent,
                reason=reason,
                at=13.0,
                cursor=START,
            )
        )
        return self

    def end(
        self, end: AttemptEnd = AttemptEnd.COMPLETED, *, trial: TrialId = ONE, attempt: int = 1, **fields: Any
    ) -> Story:
        self.experiment.apply(AttemptEnded(trial=trial, attempt=attempt, end=end, at=14.0, **fields))
        return self

    def break_device(self, attempt: int = 1, device: str = "0") -> Story:
        error = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
        self.stage(attempt=attempt).start(attempt=attempt, device=device)
        return self.end(AttemptEnd.HANDED_BACK, attempt=attempt, error_type=DEVICE_BROKEN, error=error, pid=7)

    def fail(self, trial: TrialId = ONE, attempt: int = 1) -> Story:
        error = "Traceback (most recent call last):\n  File x\nValueError: no luck\n"
        return self.end(AttemptEnd.FAILED, trial=trial, attempt=attempt, error_type="ValueError", error=error)


@pytest.fixture
def story() -> Story:
    return Story()


# The way of a trial.


def test_a_trial_that_reported_and_returned_is_completed(story: Story) -> None:
    story.run().report(0.5).end(pid=7, exit_code=0, stdout_tail="out", stderr_tail="err")

    trial = story.trial()
    assert trial.status is TrialStatus.COMPLETED
    assert (trial.attempt.end, trial.attempt.ended_at, trial.attempt.pid) == (AttemptEnd.COMPLETED, 14.0, 7)
    assert (trial.attempt.exit_code, trial.attempt.stdout_tail, trial.attempt.stderr_tail) == (0, "out", "err")
    assert (story.experiment.busy, story.experiment.live) == (0, 0)


def test_an_event_that_can_not_follow_is_an_error_and_changes_nothing(story: Story) -> None:
    story.run().report(1).end()
    counts = dict(story.experiment.counts)

    with pytest.raises(InvalidTransition, match="0001"):
        story.stage(ONE, 2)

    assert story.trial().status is TrialStatus.COMPLETED
    assert len(story.trial().attempts) == 1
    assert (story.experiment.counts, story.experiment.live) == (counts, 0)


def test_an_end_that_is_told_twice_counts_once(story: Story) -> None:
    story.run().fail().end(AttemptEnd.COMPLETED)

    assert story.trial().attempt.end is AttemptEnd.FAILED
    assert (story.trial().failures, story.experiment.live) == (1, 0)


def test_the_experiment_knows_when_it_was_created_and_how_it_ended(story: Story) -> None:
    story.experiment.apply(ExperimentCreated(name="x", definition={}, at=5.0))
    story.experiment.apply(ExperimentEnded(outcome="finished", reason="all done", at=6.0, cursor=START))

    assert (story.experiment.created_at, story.experiment.outcome, story.experiment.reason) == (
        5.0,
        "finished",
        "all done",
    )


def test_an_experiment_that_goes_on_has_not_ended(story: Story) -> None:
    story.experiment.apply(ExperimentEnded(outcome="interrupted", reason="Ctrl-C", at=6.0, cursor=START))

    story.stage()

    assert (story.experiment.outcome, story.experiment.reason) == ("", "")


# Ends.


def test_a_trial_that_never_reported_has_failed_and_the_reason_says_what_to_call(story: Story) -> None:
    story.run().end()

    assert story.trial().status is TrialStatus.FAILED
    assert story.trial().reason == (
        "ended without any report: call mqtune.report({'loss': …}), or have a script print [tune-metric]: {\"loss\": …}"
    )


@pytest.mark.parametrize("value", [None, "0.5", [0.5], {"train": 0.5}])
def test_a_trial_whose_reports_have_no_number_for_the_metric_has_failed_and_the_reason_says_so(
    story: Story, value: object
) -> None:
    story.run().report(value, value).end()

    assert story.trial().status is TrialStatus.FAILED
    assert story.trial().reason.startswith(
        f"none of its 2 reports has a number for 'loss' (the last has loss={value!r}): call mqtune.report({{'loss': …}})"
    )


def test_a_trial_whose_reports_lack_the_metric_has_failed_and_the_reason_names_what_they_have(story: Story) -> None:
    story.run()
    story.experiment.apply_report(Report(ONE, 1, 1, 12.0, {"Loss": 1.0, "epoch": 1}))
    story.end()

    assert story.trial().status is TrialStatus.FAILED
    assert "its only report has no number for 'loss' (the last has 'Loss', 'epoch')" in story.trial().reason


def test_a_trial_that_reported_nothing_but_nan_is_completed(story: Story) -> None:
    story.run().report(math.nan).end()

    assert story.trial().status is TrialStatus.COMPLETED
    assert story.experiment.metric_seen


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("stop", TrialStatus.EARLY_STOPPED),
        ("complete", TrialStatus.COMPLETED),
        ("pause", TrialStatus.PAUSED),
        ("abandon", TrialStatus.ABANDONED),
    ],
)
@pytest.mark.parametrize("end", sorted(AttemptEnd, key=str))
def test_whatever_follows_a_decision_is_its_consequence(
    story: Story, action: str, status: TrialStatus, end: AttemptEnd
) -> None:
    story.run().report(1).decide(action=action).end(end, error="Killed")

    assert (story.trial().status, story.trial().reason) == (status, "rung 3")
    assert story.trial().decision == Decision(Action(action), "rung 3")
    assert (story.trial().failures, list(story.experiment.to_retry)) == (0, [])


@pytest.mark.parametrize(("error", "reason"), [("terminated by Ann", "terminated by Ann"), ("", "terminated by hand")])
def test_a_trial_that_a_person_ended_is_abandoned(story: Story, error: str, reason: str) -> None:
    story.run().report(1).end(AttemptEnd.STOPPED, error=error)

    assert (story.trial().status, story.trial().reason) == (TrialStatus.ABANDONED, reason)


def test_a_decision_about_an_earlier_attempt_is_of_no_consequence(story: Story) -> None:
    story.run().end(AttemptEnd.LOST).run(attempt=2)

    story.decide(attempt=1)

    assert story.trial().decision is None
    assert story.trial().attempt.intent is Intent.RUN


# Trying again.


@pytest.mark.parametrize(
    ("error_type", "error", "reason"),
    [
        ("ValueError", "Traceback (most recent call last):\n  File x\nValueError: no luck\n", "ValueError: no luck"),
        (
            "OutOfMemoryError",
            "Traceback\ntorch.OutOfMemoryError: CUDA is full\n",
            "torch.OutOfMemoryError: CUDA is full",
        ),
        ("AssertionError", "Traceback\nAssertionError\n", "AssertionError"),
        ("SystemExit", "SystemExit: 3", "SystemExit: 3"),
        ("Killed", "the trial's process was killed by SIGKILL", "Killed: the trial's process was killed by SIGKILL"),
        # As torchrun ends its report.
        ("Exited", "its last errors were:\ntrain.py FAILED\n==========\n", "Exited: train.py FAILED"),
        ("Exited", "=====", "Exited: ====="),
    ],
)
def test_a_failed_trial_has_the_last_line_of_its_error_that_has_words_as_the_reason(
    story: Story, error_type: str, error: str, reason: str
) -> None:
    story.run().end(AttemptEnd.FAILED, error_type=error_type, error=error)

    assert (story.trial().status, story.trial().reason) == (TrialStatus.FAILED, reason)


@pytest.mark.parametrize("max_failures", [0, 3])
def test_a_trial_may_fail_so_often_and_no_more(max_failures: int) -> None:
    story = Story(max_failures=max_failures)

    for attempt in range(1, max_failures + 1):
        story.run(attempt=attempt).fail(attempt=attempt)
        assert story.trial().status is TrialStatus.STAGED
        assert list(story.experiment.to_retry) == [ONE]
    story.run(attempt=max_failures + 1).fail(attempt=max_failures + 1)

    assert story.trial().status is TrialStatus.FAILED
    assert story.trial().failures == max_failures + 1
    assert list(story.experiment.to_retry) == []


def test_a_trial_may_fail_for_ever() -> None:
    story = Story(max_failures=-1)

    for attempt in range(1, 51):
        story.run(attempt=attempt).fail(attempt=attempt)

    assert story.trial().status is TrialStatus.STAGED
    assert list(story.experiment.to_retry) == [ONE]


def test_a_retry_pauses_from_the_second_one_in_a_row_on_until_a_report_says_more_than_before() -> None:
    story, pauses = Story(max_failures=-1), []
    for attempt, iterations in enumerate([(), (), (), (1, 2), (1, 2), (1,), (1, 2, 3)], 1):
        story.run(attempt=attempt)
        for iteration in iterations:
            story.report(1.0, attempt=attempt, training_iteration=iteration)
        story.fail(attempt=attempt)
        pauses.append(story.trial().retry_pause_s)

    assert pauses == [0.0, 0.1, 0.2, 0.0, 0.1, 0.2, 0.0]


def test_a_trial_without_reports_is_tried_again_like_one_that_failed() -> None:
    story = Story(max_failures=1)

    story.run().end()

    assert (story.trial().status, list(story.experiment.to_retry)) == (TrialStatus.STAGED, [ONE])


def test_staging_the_next_attempt_takes_a_trial_from_the_waiting_ones() -> None:
    story = Story(max_failures=1)
    story.run(ONE).run(TWO).run(THREE).fail(TWO).fail(ONE).fail(THREE)
    assert list(story.experiment.to_retry) == [ONE, TWO, THREE]

    story.stage(TWO, 2).stage(THREE, 2)

    assert list(story.experiment.to_retry) == [ONE]
    assert (story.experiment.live, story.experiment.busy) == (2, 3)


def test_trials_that_have_come_somewhere_run_again_first_and_the_others_in_their_order(story: Story) -> None:
    """In whatever order they were taken back: what a person put first, or a grid's beginning, stays first."""
    ids = [TrialId(name) for name in ("0001", "0002", "0003", "9999", "10000")]
    for id_ in ids:
        story.stage(id_)
    story.start(ids[2]).report(0.5, trial=ids[2])

    for id_ in (ids[4], ids[1], ids[3], ids[2], ids[0]):
        story.decide(Intent.HAND_BACK, "hand_back", "its share", trial=id_).end(AttemptEnd.HANDED_BACK, trial=id_)

    assert story.experiment.to_retry == [ids[2], ids[0], ids[1], ids[3], ids[4]]


def test_reports_of_all_attempts_count_for_the_trial(story: Story) -> None:
    story.run().report(3, 2).end(AttemptEnd.LOST).run(attempt=2).report(4, attempt=2)

    trial = story.trial()
    assert (trial.reports, [attempt.reports for attempt in trial.attempts]) == (3, [2, 1])
    assert (trial.best_value, trial.last_metrics, trial.average) == (2, {"loss": 4}, 3)


def test_a_trial_that_reported_in_an_earlier_attempt_may_return_at_once_in_the_next(story: Story) -> None:
    story.run().report(1).end(AttemptEnd.LOST).run(attempt=2).end(attempt=2)

    assert story.trial().status is TrialStatus.COMPLETED


@pytest.mark.parametrize("end", [AttemptEnd.LOST, AttemptEnd.HANDED_BACK])
def test_a_lost_or_handed_back_attempt_is_no_failure(story: Story, end: AttemptEnd) -> None:
    story.run().report(1).end(end)

    assert (story.trial().status, story.trial().failures) == (TrialStatus.STAGED, 0)
    assert list(story.experiment.to_retry) == [ONE]
    assert story.trial().reason == f"{end.value} by w@a"


def test_a_broken_device_is_no_failure_of_the_trial_that_met_it(story: Story) -> None:
    story.break_device()

    assert (story.trial().status, story.trial().failures) == (TrialStatus.STAGED, 0)
    assert story.trial().reason.startswith("device 0,1 of w@a is broken: DeviceBroken: RuntimeError: CUDA error")


def test_a_trial_that_has_broken_two_devices_has_failed_itself() -> None:
    story = Story(max_failures=1)

    story.break_device().break_device(2, device="2")
    assert (story.trial().status, story.trial().failures) == (TrialStatus.STAGED, 1)
    story.break_device(3, device="0")

    assert story.trial().status is TrialStatus.FAILED
    assert story.trial().reason.endswith("as on another device before")


def test_a_trial_that_breaks_one_device_again_and_again_is_lost_so_often_though_it_reports() -> None:
    story = Story()

    for attempt in range(1, LOST_BUDGET + 2):
        assert story.experiment.trials.get(ONE) is None or story.trial().status is TrialStatus.STAGED
        story.run(attempt=attempt).report(1, attempt=attempt, training_iteration=1)
        story.end(AttemptEnd.HANDED_BACK, attempt=attempt, error_type=DEVICE_BROKEN, error="GPU is lost", pid=7)

    assert story.trial().status is TrialStatus.FAILED


def test_a_lost_attempt_that_nobody_claimed_can_be_tried_again(story: Story) -> None:
    story.stage().end(AttemptEnd.LOST)

    assert (story.trial().status, story.trial().reason) == (TrialStatus.STAGED, "lost by its worker")


@pytest.mark.parametrize("end", [AttemptEnd.LOST, AttemptEnd.HANDED_BACK])
def test_lost_and_handed_back_attempts_have_a_budget(end: AttemptEnd) -> None:
    story = Story(max_failures=-1)

    for attempt in range(1, LOST_BUDGET + 1):
        story.run(attempt=attempt).end(end, attempt=attempt)
        assert story.trial().status is TrialStatus.STAGED
    story.run(attempt=LOST_BUDGET + 1).end(end, attempt=LOST_BUDGET + 1)

    assert story.trial().status is TrialStatus.FAILED
    assert f"{LOST_BUDGET + 1} attempts in a row were lost or requeued" in story.trial().reason
    assert list(story.experiment.to_retry) == []


def test_a_trial_that_comes_further_each_time_may_be_lost_any_number_of_times(story: Story) -> None:
    """As on machines that are taken away without notice."""
    for attempt in range(1, 4 * LOST_BUDGET):
        story.run(attempt=attempt).report(1, attempt=attempt, training_iteration=attempt)
        story.end(AttemptEnd.LOST, attempt=attempt)

        assert story.trial().status is TrialStatus.STAGED


def test_reports_that_a_trial_makes_again_do_not_excuse_its_losses(story: Story) -> None:
    """Else one without checkpoints that takes its machines down would do so for ever."""
    for attempt in range(1, LOST_BUDGET + 3):
        assert story.trial().status is TrialStatus.STAGED if attempt > 1 else True
        story.run(attempt=attempt)
        for iteration in (1, 2):
            story.report(1, attempt=attempt, training_iteration=iteration)
        story.end(AttemptEnd.LOST, attempt=attempt)
        if story.trial().status is TrialStatus.FAILED:
            break

    # The first one came further than none.
    assert attempt == LOST_BUDGET + 1


def test_what_an_attempt_between_two_losses_has_reported_excuses_the_first(story: Story) -> None:
    story = Story(max_failures=-1, max_lost=1)
    story.run().end(AttemptEnd.LOST)
    story.run(attempt=2).report(1, attempt=2, training_iteration=7).fail(attempt=2)

    story.run(attempt=3).end(AttemptEnd.LOST, attempt=3)
    assert story.trial().status is TrialStatus.STAGED
    story.run(attempt=4).end(AttemptEnd.LOST, attempt=4)

    assert story.trial().status is TrialStatus.FAILED
    assert story.trial().reason == (
        "lost by w@a; 2 attempts in a row were lost or requeued without coming further, and max_lost=1"
    )


def test_a_trial_may_be_lost_as_often_as_was_said() -> None:
    endless = Story(max_lost=-1)
    for attempt in range(1, 3 * LOST_BUDGET):
        endless.run(attempt=attempt).end(AttemptEnd.LOST, attempt=attempt)
    never = Story(max_lost=0).run().end(AttemptEnd.LOST)

    assert endless.trial().status is TrialStatus.STAGED
    assert never.trial().status is TrialStatus.FAILED


@pytest.mark.parametrize("iteration", ["many", math.nan, True, None])
def test_an_iteration_that_is_no_number_disturbs_no_count(story: Story, iteration: Any) -> None:
    for attempt in range(1, LOST_BUDGET + 2):
        story.run(attempt=attempt).report(1, attempt=attempt, training_iteration=iteration)
        story.end(AttemptEnd.LOST, attempt=attempt)

    assert story.trial().status is TrialStatus.FAILED


def test_an_attempt_that_could_not_be_started_is_no_failure_and_says_why(story: Story) -> None:
    error = "on worker w@a, trainable train:f below code root /code:\nno module named torch"
    story.run().end(AttemptEnd.HANDED_BACK, error_type="ModuleNotFoundError", error=error)

    assert (story.trial().status, story.trial().failures) == (TrialStatus.STAGED, 0)
    assert story.trial().attempt.could_not_start
    assert story.trial().reason == "could not be started by w@a: ModuleNotFoundError: no module named torch"


def test_a_trial_that_gets_somewhere_may_be_handed_back_any_number_of_times() -> None:
    story = Story()
    for attempt in range(1, 4 * LOST_BUDGET):
        story.run(attempt=attempt).report(1, attempt=attempt).end(AttemptEnd.HANDED_BACK, attempt=attempt)

        assert story.trial().status is TrialStatus.STAGED


def test_failures_do_not_use_up_the_budget_for_lost_attempts() -> None:
    story = Story(max_failures=-1)
    for attempt in range(1, LOST_BUDGET + 3):
        story.run(attempt=attempt).fail(attempt=attempt)

    story.run(attempt=LOST_BUDGET + 3).end(AttemptEnd.LOST, attempt=LOST_BUDGET + 3)

    assert story.trial().status is TrialStatus.STAGED


@pytest.mark.parametrize("intent", [Intent.HAND_BACK, Intent.GIVE_WAY])
def test_what_the_driver_takes_back_is_tried_again_any_number_of_times(story: Story, intent: Intent) -> None:
    for attempt in range(1, LOST_BUDGET + 5):
        story.run(attempt=attempt).decide(intent, intent.value, "Ctrl-C", attempt=attempt)
        assert story.trial().decision is None
        story.end(AttemptEnd.HANDED_BACK, attempt=attempt)

        assert (story.trial().status, story.trial().reason) == (TrialStatus.STAGED, "Ctrl-C")


def test_what_the_driver_took_back_does_not_use_up_the_budget_for_lost_attempts(story: Story) -> None:
    """Else an experiment that a person interrupts now and then would end at its first flaky worker."""
    for attempt in range(1, LOST_BUDGET + 2):
        story.run(attempt=attempt).decide(Intent.HAND_BACK, "hand_back", "Ctrl-C", attempt=attempt)
        story.end(AttemptEnd.HANDED_BACK, attempt=attempt)

    story.run(attempt=LOST_BUDGET + 2).end(AttemptEnd.LOST, attempt=LOST_BUDGET + 2)

    assert story.trial().status is TrialStatus.STAGED


def test_a_trial_that_returns_while_it_is_taken_back_is_completed(story: Story) -> None:
    story.run().report(1).decide(Intent.HAND_BACK, "hand_back", "Ctrl-C").end(AttemptEnd.COMPLETED)

    assert story.trial().status is TrialStatus.COMPLETED


# Reports.


@pytest.mark.parametrize("intent", [Intent.STOP, Intent.PAUSE])
def test_a_report_after_the_decision_is_counted_and_not_shown(story: Story, intent: Intent) -> None:
    story.run().report(3).decide(intent, intent.value)

    assert story.experiment.apply_report(Report(ONE, 1, 2, 13.0, {"loss": 1})) is None

    trial = story.trial()
    assert (trial.late_reports, trial.reports, trial.attempt.reports, story.experiment.reports) == (1, 1, 1, 1)
    assert (trial.best_value, trial.last_metrics) == (3, {"loss": 3})


def test_a_report_of_an_attempt_that_is_taken_back_counts_like_any_other(story: Story) -> None:
    """Nothing is decided about its trial, which goes on from there."""
    story.run().report(3).decide(Intent.HAND_BACK, "hand_back", "Ctrl-C")

    assert story.experiment.apply_report(Report(ONE, 1, 2, 13.0, {"loss": 1})) is story.trial()

    assert (story.trial().reports, story.trial().late_reports, story.trial().best_value) == (2, 0, 1)


def test_a_trial_may_be_decided_on_while_it_is_taken_back(story: Story) -> None:
    story.run().report(3).decide(Intent.HAND_BACK, "hand_back", "Ctrl-C").report(9).decide()

    assert story.trial().attempt.intent is Intent.STOP
    assert story.end(AttemptEnd.HANDED_BACK).trial().status is TrialStatus.EARLY_STOPPED


def test_a_report_after_the_end_or_of_an_earlier_attempt_is_counted_and_not_shown(story: Story) -> None:
    story.run().end(AttemptEnd.LOST)
    assert story.experiment.apply_report(Report(ONE, 1, 1, 13.0, {"loss": 1})) is None
    story.run(attempt=2)
    assert story.experiment.apply_report(Report(ONE, 1, 2, 13.0, {"loss": 1})) is None

    assert (story.trial().late_reports, story.trial().reports) == (2, 0)


def test_a_batch_of_reports_counts_like_its_reports_one_by_one(story: Story) -> None:
    story.run(ONE).run(TWO)

    story.experiment.apply(
        Reports([(ONE, 1, 1, [(1.0, {"loss": 3}), (2.0, {"loss": 2})]), (TWO, 1, 1, [(3.0, {"loss": 1})])])
    )

    assert (story.trial(ONE).reports, story.trial(TWO).reports, story.experiment.reports) == (2, 1, 3)
    assert story.experiment.best is story.trial(TWO)
    assert story.trial(ONE).last_timestamp == 2.0


# What is best.


@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [
        ("min", [3, 1, 2], 1),
        ("max", [3, 1, 2], 3),
        ("min", [math.nan, 2.0, math.nan], 2.0),
        ("max", [math.nan, -2.0, math.nan], -2.0),
        ("min", [math.inf, 5], 5),
        ("min", [5, -math.inf], -math.inf),
        ("max", [-math.inf, 5], 5),
        ("max", [5, math.inf], math.inf),
        ("min", [math.inf], math.inf),
        ("max", [-math.inf], -math.inf),
        ("min", [2**64 - 1, -(2**63)], -(2**63)),
        ("max", [0, 0.0, -0.0], 0),
    ],
)
def test_the_best_report_of_a_trial_is_kept(mode: Mode, values: list[float], best: float) -> None:
    story = Story(mode=mode)

    story.run().report(*values)

    trial = story.trial()
    assert trial.best_value == best
    assert trial.best_metrics == {"loss": best}
    assert type(trial.best_value) is type(best)
    assert story.experiment.best is trial


def test_a_trial_of_nothing_but_nan_has_no_best(story: Story) -> None:
    story.run().report(math.nan, math.nan)

    trial = story.trial()
    assert math.isnan(trial.best_value)
    assert math.isnan(trial.average)
    assert trial.best_metrics == {}
    assert story.experiment.best is None


def test_whoever_reached_the_best_value_first_keeps_its_place(story: Story) -> None:
    story.run(ONE).run(TWO).report(1, trial=TWO).report(1, trial=ONE)

    assert story.experiment.best is story.trial(TWO)


@pytest.mark.parametrize(("mode", "best"), [("min", TWO), ("max", THREE)])
def test_the_best_trial_is_the_one_with_the_best_report(mode: Mode, best: TrialId) -> None:
    story = Story(mode=mode)

    story.run(ONE).run(TWO).run(THREE).report(math.nan, 5, trial=ONE).report(1, 9, trial=TWO).report(2, 10, trial=THREE)

    assert story.experiment.best is story.trial(best)


@pytest.mark.parametrize(
    ("values", "average"),
    [([1, 2, 6], 3.0), ([1, math.nan, 3, None, "x"], 2.0), ([1, math.inf], math.inf), ([-math.inf], -math.inf)],
)
def test_the_average_is_over_the_reports_that_had_a_number(story: Story, values: list[Any], average: float) -> None:
    story.run().report(*values)

    assert story.trial().average == average


@pytest.mark.parametrize("value", [True, False])
def test_a_bool_is_no_number(story: Story, value: bool) -> None:
    """As for the schedulers: what is reported as a bool is not what is optimised, and its mean is not a loss."""
    story.run().report(value).end()

    assert story.trial().status is TrialStatus.FAILED
    assert "its only report has no number for 'loss'" in story.trial().reason
    assert not story.experiment.metric_seen
    assert story.experiment.best is None


# Requests.


def requested(id_: str, action: str = "stop", trial: str = ONE) -> Requested:
    return Requested(id=id_, action=action, trial=trial, arguments={}, by="ada", at=12.0)


def answered(id_: str) -> RequestAnswered:
    return RequestAnswered(id=id_, done=True, reason="", trial=ONE, at=13.0, cursor=START)


def test_requests_wait_in_the_order_of_the_journal_until_they_are_answered(story: Story) -> None:
    experiment = story.experiment
    for id_ in ("b", "a", "c"):
        experiment.apply(requested(id_))
    experiment.apply(answered("a"))

    assert [*experiment.requests.values()] == [requested("b"), requested("c")]


def test_a_request_that_comes_again_waits_once_and_not_after_its_answer(story: Story) -> None:
    for _ in range(2):
        story.experiment.apply(requested("a"))
    assert [*story.experiment.requests] == ["a"]

    story.experiment.apply(answered("a"))
    story.experiment.apply(requested("a"))
    assert story.experiment.requests == {}


def test_an_effect_that_is_in_the_journal_says_that_only_the_answer_is_missing(story: Story) -> None:
    experiment = story.run().experiment
    for id_, action in (("d", "pause"), ("s", "resume"), ("t", "fail")):
        experiment.apply(requested(id_, action))
    pause = {"action": "pause", "intent": Intent.PAUSE, "reason": "", "at": 13.0, "cursor": START}
    experiment.apply(DecisionTaken(trial=ONE, attempt=1, sequence=0, request="d", **pause))  # type: ignore[arg-type]
    story.end(AttemptEnd.PAUSED)
    experiment.apply(TrialStaged(trial=ONE, attempt=2, config={}, at=14.0, cursor=START, request="s"))
    story.stage(TWO).decide(Intent.PAUSE, "pause", trial=TWO).end(AttemptEnd.PAUSED, trial=TWO)
    experiment.apply(TrialClosed(trial=TWO, status="failed", reason="", by="user", at=15.0, cursor=START, request="t"))

    assert experiment.carried_out == {"d": ONE, "s": ONE, "t": TWO}
    for id_ in "dst":
        experiment.apply(answered(id_))
    assert (experiment.requests, experiment.carried_out) == ({}, {})


def test_what_is_remembered_of_answered_requests_does_not_grow(story: Story) -> None:
    for number in range(ANSWERED_COUNT + 10):
        story.experiment.apply(requested(str(number)))
        story.experiment.apply(answered(str(number)))

    assert len(story.experiment._answered) == ANSWERED_COUNT
    assert story.experiment.requests == {}


def test_equal_environments_are_kept_once_also_by_who_restores_a_state() -> None:
    packages = {f"package-{number}": "1.0" for number in range(40)}
    story = Story()
    for number, python in enumerate(["3.12", "3.12", "3.13"], 1):
        trial = TrialId(f"{number:04d}")
        started = AttemptStarted(trial=trial, attempt=1, worker="w", host="h", devices=[], at=11.0)
        environment = {"python": python, "packages": dict(packages)}
        story.stage(trial).experiment.apply(dataclasses.replace(started, environment=environment))
    restored = Experiment("x", metric="loss", mode="min", max_failures=0)
    restored.restore(decode_value(encode_value(story.experiment.state())))

    for experiment in (story.experiment, restored):
        first, second, third = (trial.attempt.environment for trial in experiment.trials.values())
        assert first is second
        assert [third["python"], third["packages"], first["python"]] == ["3.13", packages, "3.12"]
