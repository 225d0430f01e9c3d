from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.events import (
    START,
    AttemptEnded,
    AttemptStarted,
    DecisionTaken,
    RequestAnswered,
    Requested,
    TrialStaged,
)
from mqtune.core.experiment import LOST_BUDGET, Experiment
from mqtune.core.objective import Mode
from mqtune.core.trial import (
    DEVICE_BROKEN,
    PARAMETERS,
    WORKER_ERROR,
    Action,
    AttemptEnd,
    Decision,
    FurtherTask,
    Intent,
    Report,
    Trial,
    TrialId,
    TrialStatus,
)

ONE, TWO, THREE = TrialId("0001"), TrialId("0002"), TrialId("0003")


class Story:
    """An experiment, and short calls for its events."""

    def __init__(self, **options: Any) -> None:
        self.experiment = Experiment("x", **{"metric": "loss", "mode": "min", "max_failures": 0, **options})
        self.sequence = 0

    def trial(self, trial: TrialId = ONE) -> Trial:
        return self.experiment.trials[trial]

    def stage(self, trial: TrialId = ONE, attempt: int = 1) -> Story:
        self.experiment.apply(TrialStaged(trial=trial, attempt=attempt, config={}, at=10.0, cursor=START))
        return self

    def start(self, trial: TrialId = ONE, attempt: int = 1, device: str = "0") -> Story:
        where: dict[str, Any] = {"worker": "w@a", "host": "a", "devices": [device, "1"]}
        self.experiment.apply(AttemptStarted(trial=trial, attempt=attempt, at=11.0, **where))
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
        trial: TrialId = ONE,
        attempt: int = 1,
    ) -> Story:
        whose = {"trial": trial, "attempt": attempt, "sequence": 1}
        self.experiment.apply(
            DecisionTaken(**whose, action=action, intent=intent, reason=reason, at=13.0, cursor=START)
        )
        return self

    def end(
        self, end: AttemptEnd = AttemptEnd.COMPLETED, trial: TrialId = ONE, attempt: int = 1, **fields: Any
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


def test_an_end_that_is_told_twice_counts_once(story: Story) -> None:
    story.run().fail().end(AttemptEnd.COMPLETED)

    assert story.trial().attempt.end is AttemptEnd.FAILED
    assert (story.trial().failures, story.experiment.live) == (1, 0)


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
def test_what_follows_a_decision_is_its_result(story: Story, action: str, status: TrialStatus, end: AttemptEnd) -> None:
    story.run().report(1).decide(action=action).end(end, error="Killed")

    assert (story.trial().status, story.trial().reason) == (status, "rung 3")
    assert story.trial().decision == Decision(Action(action), "rung 3")
    assert (story.trial().failures, list(story.experiment.to_retry)) == (0, [])


TELLS_WHAT_TO_CALL = "call mqtune.report({'loss': …})"
COMPLETED, FAILED = AttemptEnd.COMPLETED, AttemptEnd.FAILED


@pytest.mark.parametrize(
    ("reports", "end", "error_type", "error", "reason"),
    [
        ([], COMPLETED, "", "", f"ended without any report: {TELLS_WHAT_TO_CALL} in the training; a script without mqtune prints a line instead: [tune-metric]: "),
        *(
            ([{"loss": value}] * 2, COMPLETED, "", "", f"none of its 2 reports has a number for 'loss' (the last has loss={value!r}): {TELLS_WHAT_TO_CALL}")
            for value in (None, "0.5", [0.5], {"train": 0.5}, True)
        ),
        ([{"Loss": 1.0, "epoch": 1}], COMPLETED, "", "", "its only report has no number for 'loss' (the last has 'Loss', 'epoch')"),
        ([], FAILED, "ValueError", "Traceback (most recent call last):\n  File x\nValueError: no luck\n", "ValueError: no luck"),
        ([], FAILED, "OutOfMemoryError", "Traceback\ntorch.OutOfMemoryError: full\n", "torch.OutOfMemoryError: full"),
        ([], FAILED, "AssertionError", "Traceback\nAssertionError\n", "AssertionError"),
        ([], FAILED, "SystemExit", "SystemExit: 3", "SystemExit: 3"),
        ([], FAILED, "ValueError", "Traceback\nValueError: too large\nin row 3\na note", "ValueError: too large"),
        ([], FAILED, "KeyError", "KeyError: 1\nDuring handling\nTraceback\nKeyError: 2\nseen", "KeyError: 2"),
        (
            [], FAILED, "ExceptionGroup", "  + Traceback\n  | ExceptionGroup: two (2 sub-exceptions)\n    | ValueError: a\n    +---",
            "ExceptionGroup: two (2 sub-exceptions)",
        ),
        ([], FAILED, "Killed", "the process was killed by SIGKILL", "Killed: the process was killed by SIGKILL"),
        # As torchrun ends its report.
        ([], FAILED, "Exited", "its last errors were:\ntrain.py FAILED\n==========\n", "Exited: train.py FAILED"),
        ([], FAILED, "Exited", "=====", "Exited: ====="),
    ],
)  # fmt: skip
def test_a_failed_trial_says_why(
    story: Story, reports: list[dict[str, Any]], end: AttemptEnd, error_type: str, error: str, reason: str
) -> None:
    story.run()
    for sequence, metrics in enumerate(reports, 1):
        story.experiment.apply_report(Report(ONE, 1, sequence, 12.0, metrics))
    story.end(end, error_type=error_type, error=error)

    assert story.trial().status is TrialStatus.FAILED
    assert story.trial().reason.startswith(reason)
    assert error == "" or story.trial().reason == reason
    assert (story.experiment.metric_seen, story.experiment.best) == (False, None)


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize("max_failures", [0, 3, -1])
def test_a_trial_may_fail_or_end_without_a_report_so_often_and_no_more(max_failures: int, reports: bool) -> None:
    story = Story(max_failures=max_failures)

    for attempt in range(1, (50 if max_failures < 0 else max_failures) + 1):
        run = story.run(attempt=attempt)
        run.fail(attempt=attempt) if reports else run.end(attempt=attempt)
        assert story.trial().status is TrialStatus.QUEUED
        assert list(story.experiment.to_retry) == [ONE]
    if max_failures < 0:
        return
    story.run(attempt=max_failures + 1).fail(attempt=max_failures + 1)

    assert story.trial().status is TrialStatus.FAILED
    assert story.trial().failures == max_failures + 1
    assert list(story.experiment.to_retry) == []


def test_a_retry_pauses_from_the_second_one_in_a_row_on_until_a_report_says_more_than_before() -> None:
    story, pauses = Story(max_failures=-1), []
    for attempt, iterations in enumerate([(), (), (), (1, 2), (1, 2), (1,), (1, 2, 3)], 1):
        story.run(attempt=attempt)
        for iteration in iterations:
            story.report(1.0, attempt=attempt, training_iteration=iteration)
        story.fail(attempt=attempt)
        pauses.append(story.trial().retry_pause_s)

    assert pauses == [0.0, 0.1, 0.2, 0.0, 0.1, 0.2, 0.0]


def test_trials_that_have_come_somewhere_run_again_first_and_the_others_in_their_order(story: Story) -> None:
    ids = [TrialId(name) for name in ("0001", "0002", "0003", "9999", "10000")]
    for id_ in ids:
        story.stage(id_)
    story.start(ids[2]).report(0.5, trial=ids[2])

    for id_ in (ids[4], ids[1], ids[3], ids[2], ids[0]):
        story.decide(Intent.HAND_BACK, "hand_back", "its share", trial=id_).end(AttemptEnd.HANDED_BACK, trial=id_)

    assert story.experiment.to_retry == [ids[2], ids[0], ids[1], ids[3], ids[4]]


def test_reports_of_all_attempts_count_for_the_trial_and_nothing_else_of_an_earlier_one(story: Story) -> None:
    story.run().report(3, 2, math.nan, None, "x").end(AttemptEnd.LOST).run(attempt=2).report(4, attempt=2)
    story.decide(attempt=1)

    trial = story.trial()
    assert (trial.reports, [attempt.reports for attempt in trial.attempts]) == (6, [5, 1])
    assert (trial.best_value, trial.last_metrics, trial.average) == (2, {"loss": 4}, 3)
    assert (trial.decision, trial.attempt.intent) == (None, Intent.RUN)
    story.report(math.inf, attempt=2)
    assert trial.average == math.inf
    story.end(AttemptEnd.LOST, attempt=2).run(attempt=3).end(attempt=3)
    assert trial.status is TrialStatus.COMPLETED, "it may return at once"


def test_the_config_of_a_trial_that_chooses_its_parameters_is_what_it_says_last(story: Story) -> None:
    story.run().report(1, **{PARAMETERS: {"x": 1}})
    assert story.trial().config == story.trial().attempt.config == {"x": 1}

    story.report(1, **{PARAMETERS: {"x": 1, "y": 2}}).report(1)
    assert story.trial().config == {"x": 1, "y": 2}

    story.report(1, **{PARAMETERS: 3})
    assert story.trial().config == {"x": 1, "y": 2}, "a number is no config"


@pytest.mark.parametrize("error_type", [DEVICE_BROKEN, WORKER_ERROR])
def test_a_fault_of_a_device_or_worker_uses_up_the_budget_for_lost_ones(story: Story, error_type: str) -> None:
    for attempt in range(1, LOST_BUDGET + 2):
        story.run(attempt=attempt).report(1, attempt=attempt, training_iteration=1)
        story.end(HANDED_BACK, attempt=attempt, error_type=error_type, error="GPU is lost", pid=7)
        assert story.trial().status is (TrialStatus.QUEUED if attempt <= LOST_BUDGET else TrialStatus.FAILED)


def test_a_trial_that_has_broken_two_devices_has_failed_itself() -> None:
    story = Story(max_failures=1)

    story.break_device().break_device(2, device="2")
    assert (story.trial().status, story.trial().failures) == (TrialStatus.QUEUED, 1)
    story.break_device(3, device="0")

    assert story.trial().status is TrialStatus.FAILED
    assert story.trial().reason.endswith("as on another device before")


LOST, HANDED_BACK = AttemptEnd.LOST, AttemptEnd.HANDED_BACK
#: How attempts end, which iterations they report, and whether that uses up the budget for lost ones.
LOSSES: dict[str, tuple[AttemptEnd, Callable[[int], Sequence[Any]], bool]] = {
    "lost": (LOST, lambda attempt: (), True),
    "handed back": (HANDED_BACK, lambda attempt: (), True),
    # A report between two losses excuses the first.
    "lost, and further on every other time": (LOST, lambda attempt: (attempt,) if attempt % 2 else (), False),
    # As on machines that are taken away without notice.
    "lost further on": (LOST, lambda attempt: (attempt,), False),
    "handed back with a report": (HANDED_BACK, lambda attempt: (None,), False),
    # Else one without checkpoints that takes its machines down would do so for ever; the first one came further than none.
    "lost at the same place": (LOST, lambda attempt: (1, 2), True),
    **{f"lost at {odd}": (LOST, lambda attempt, odd=odd: (odd,), True) for odd in ("many", math.nan, True, None)},  # type: ignore[misc]
    "failed": (AttemptEnd.FAILED, lambda attempt: (), False),
}


@pytest.mark.parametrize(("end", "iterations", "uses_up"), LOSSES.values(), ids=LOSSES)
def test_lost_and_handed_back_attempts_that_come_no_further_have_a_budget(
    end: AttemptEnd, iterations: Callable[[int], Sequence[Any]], uses_up: bool
) -> None:
    story = Story(max_failures=-1)

    for attempt in range(1, LOST_BUDGET + 2 if uses_up else 4 * LOST_BUDGET):
        assert attempt == 1 or story.trial().status is TrialStatus.QUEUED
        story.run(attempt=attempt)
        for iteration in iterations(attempt):
            story.report(1, attempt=attempt, training_iteration=iteration)
        story.end(end, attempt=attempt)

    if uses_up:
        assert story.trial().status is TrialStatus.FAILED
        assert f"{LOST_BUDGET + 1} attempts in a row were lost or requeued" in story.trial().reason
        assert list(story.experiment.to_retry) == []
    else:
        story.run(attempt=attempt + 1).end(LOST, attempt=attempt + 1)
        assert story.trial().status is TrialStatus.QUEUED


@pytest.mark.parametrize("intent", [Intent.HAND_BACK, Intent.GIVE_WAY])
def test_what_the_driver_takes_back_uses_nothing_of_that_budget(story: Story, intent: Intent) -> None:
    for attempt in range(1, LOST_BUDGET + 5):
        story.run(attempt=attempt).decide(intent, intent.value, "Ctrl-C", attempt=attempt)
        assert story.trial().decision is None
        story.end(HANDED_BACK, attempt=attempt)

        assert (story.trial().status, story.trial().reason) == (TrialStatus.QUEUED, "Ctrl-C")
    story.run(attempt=LOST_BUDGET + 5).end(LOST, attempt=LOST_BUDGET + 5)

    assert story.trial().status is TrialStatus.QUEUED


@pytest.mark.parametrize(("max_lost", "times", "status"), [(0, 1, TrialStatus.FAILED), (-1, 20, TrialStatus.QUEUED)])
def test_a_trial_may_be_lost_as_often_as_was_said(max_lost: int, times: int, status: TrialStatus) -> None:
    story = Story(max_lost=max_lost)

    for attempt in range(1, times + 1):
        story.run(attempt=attempt).end(LOST, attempt=attempt)

    assert story.trial().status is status


@pytest.mark.parametrize(
    ("error_type", "error", "pid", "reason"),
    [
        ("", "", 7, "requeued by w@a"),
        ("ModuleNotFoundError", "on worker w@a:\nno torch", None, "could not be started by w@a: ModuleNotFoundError: no torch"),
        (DEVICE_BROKEN, "CUDA error: ECC", 7, "device 0,1 of w@a is broken: DeviceBroken: CUDA error: ECC"),
        (WORKER_ERROR, "on worker w@a: ValueError: 40", 7, "requeued by w@a after an error of the worker: "),
    ],
)  # fmt: skip
def test_a_returned_attempt_says_why(story: Story, error_type: str, error: str, pid: int | None, reason: str) -> None:
    story.run().end(HANDED_BACK, error_type=error_type, error=error, pid=pid)

    assert (story.trial().status, story.trial().failures) == (TrialStatus.QUEUED, 0)
    assert story.trial().attempt.could_not_start is (pid is None)
    assert story.trial().reason.startswith(reason)
    assert list(story.experiment.to_retry) == [ONE]


def test_a_report_after_the_end_or_of_an_earlier_attempt_is_counted_and_not_shown(story: Story) -> None:
    story.run().end(AttemptEnd.LOST)
    assert story.experiment.apply_report(Report(ONE, 1, 1, 13.0, {"loss": 1})) is None
    story.run(attempt=2)
    assert story.experiment.apply_report(Report(ONE, 1, 2, 13.0, {"loss": 1})) is None

    assert (story.trial().late_reports, story.trial().reports) == (2, 0)


@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [
        ("min", [3, 1, 2], 1),
        ("max", [3, 1, 2], 3),
        ("min", [math.nan, 2.0, math.nan], 2.0),
        ("max", [math.nan, -2.0, math.nan], -2.0),
        ("min", [5, -math.inf], -math.inf),
        ("max", [-math.inf, 5], 5),
        ("min", [math.inf], math.inf),
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


def test_a_trial_of_nothing_but_nan_is_completed_and_has_no_best(story: Story) -> None:
    trial = story.run().report(math.nan, math.nan).end().trial()

    assert (trial.status, story.experiment.metric_seen) == (TrialStatus.COMPLETED, True)
    assert math.isnan(trial.best_value)
    assert math.isnan(trial.average)
    assert (trial.best_metrics, story.experiment.best) == ({}, None)


def test_whoever_reached_the_best_value_first_keeps_its_place(story: Story) -> None:
    story.run(ONE).run(TWO).report(1, trial=TWO).report(1, trial=ONE)

    assert story.experiment.best is story.trial(TWO)


def test_a_request_that_comes_again_waits_once_and_not_after_its_answer(story: Story) -> None:
    requested = Requested(id="a", action="stop", trial=ONE, arguments={}, by="ada", at=12.0)
    for _ in range(2):
        story.experiment.apply(requested)
    assert [*story.experiment.requests] == ["a"]

    story.experiment.apply(RequestAnswered(id="a", done=True, reason="", trial=ONE, at=13.0, cursor=START))
    story.experiment.apply(requested)
    assert story.experiment.requests == {}


def test_an_attempt_of_several_seats_has_begun_with_the_last_of_them_and_says_where_each_is() -> None:
    story = Story().run()
    started = AttemptStarted(trial=ONE, attempt=1, worker="w@b", host="b", devices=["3"], at=12.5, queue="q", task=1)
    story.experiment.apply(started)
    restored = Experiment("x", metric="loss", mode="min", max_failures=0)
    restored.restore(decode_value(encode_value(story.experiment.state())))

    for experiment in (story.experiment, restored):
        attempt = experiment.trials[ONE].attempt
        assert (attempt.worker, attempt.started_at) == ("w@a", 12.5)
        assert attempt.further_tasks == (FurtherTask(1, "w@b", "b", "q", ("3",)),)
        assert [attempt.further_task(number) for number in (0, 1, 2)] == [None, attempt.further_tasks[0], None]
        assert experiment.trials[ONE].status is TrialStatus.RUNNING
