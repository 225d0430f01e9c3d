"""What a tuner promises on every backend and no backend can break: held to it are mqtune's own backends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from mqtune.core.callback import Callback
from mqtune.core.errors import (
    ConfigurationError,
    ExperimentFinished,
    InvalidTransition,
    MqtuneError,
    NothingResumes,
    SpaceError,
)
from mqtune.core.trial import (
    CONTINUE,
    Action,
    AttemptEnd,
    CheckpointId,
    Decision,
    Report,
    Trial,
    TrialId,
    TrialStatus,
    attempt_and_number,
)
from mqtune.driver.settings import Failures, RunOptions
from mqtune.results.results import Results
from mqtune.schedulers.base import Choice, Fork, Resume
from mqtune.schedulers.stopping.experiment_rules import TargetReached, TimeLimit, TrialsCompleted
from mqtune.schedulers.stopping.rule import StopRule
from mqtune.search.domains import choice
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space
from mqtune.testing import play
from mqtune.testing.backends.world import (
    Rule,
    Tune,
    TunerTests,
    await_reports,
    drive,
    last_step,
    pause_after,
    reports_of,
    saved_step,
)
from mqtune.testing.play import ENDLESS, SPACE, played
from mqtune.tuner import Tuner

__all__ = ["DrivingContract"]

_Call = Callable[[Tuner, Trial | TrialId], Any]

CALLS: Final[dict[str, _Call]] = {
    "stop": lambda tuner, trial: tuner.trial(trial).stop(),
    "complete": lambda tuner, trial: tuner.trial(trial).complete(),
    "abandon": lambda tuner, trial: tuner.trial(trial).abandon("why not"),
    "pause": lambda tuner, trial: tuner.trial(trial).pause(),
    "resume": lambda tuner, trial: tuner.trial(trial).resume(),
    "restart": lambda tuner, trial: tuner.trial(trial).restart(),
    "save": lambda tuner, trial: tuner.trial(trial).save(),
}
FROM_ANOTHER: Final[dict[str, _Call]] = {
    "start": lambda tuner, source: tuner.add(played(2), source=source),
    "restart": lambda tuner, source: tuner.trial("0002").restart(
        source=source.id if isinstance(source, Trial) else source
    ),
}


class DrivingContract(TunerTests):
    """What the driver does by itself, whatever runs its trials."""

    # Starting.

    def test_no_more_trials_run_at_once_than_is_asked_for(self, tune: Tune) -> None:
        tuner = tune(*[played(2) for _ in range(3)], run=RunOptions(max_concurrent=1))

        tuner.run()

        times = [time for trial in tuner.get_trials() for time in (trial.attempt.started_at, trial.attempt.ended_at)]
        assert len(known := [time for time in times if time is not None]) == len(times) == 6
        assert known == sorted(known)

    def test_a_trial_that_a_user_adds_is_the_next_one(self, tune: Tune) -> None:
        tuner = tune(played(3), played(3), run=RunOptions(max_concurrent=1))
        drive(tuner, lambda: tuner.running_trials)

        tuner.add(played(2, x=7))
        drive(tuner, lambda: tuner.is_finished)

        assert [trial.config["x"] for trial in tuner.get_trials()] == [1, 7, 1]
        assert [trial.history[0].by for trial in tuner.get_trials()] == ["searcher", "user", "searcher"]

    def test_what_a_user_leaves_out_of_a_config_is_sampled(self, tune: Tune) -> None:
        tuner = tune()

        trial = tuner.add({"length": 1, "every_s": 0.01, "fails_after": -1})
        drive(tuner, lambda: tuner.is_finished)

        assert 0 <= trial.config["x"] < 10
        assert trial.last_metrics["loss"] == trial.config["x"]

    def test_a_config_outside_of_the_space_is_refused_and_nothing_is_started(self, tune: Tune) -> None:
        tuner = tune(played(3))

        with pytest.raises(SpaceError, match="length"):
            tuner.add({**played(3), "length": -5})
        with pytest.raises(SpaceError, match="depth"):
            tuner.add({**played(3), "depth": 3})

        drive(tuner, lambda: tuner.is_finished)
        assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.COMPLETED]

    def test_a_user_starts_a_trial_from_the_best_checkpoint_and_by_its_id(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        source = await_reports(tuner, 3)
        tuner.trial(source).pause()
        drive(tuner, lambda: source.status is TrialStatus.PAUSED)

        # Of a dict only the newest is kept, and the loss falls.
        config = played(saved_step(source) + 3)
        trials = [tuner.add(config, checkpoint=which) for which in (source.checkpoint, "best")]
        drive(tuner, lambda: all(trial.status is TrialStatus.COMPLETED for trial in trials))

        for trial in trials:
            assert (trial.parent, trial.attempt.checkpoint) == (source.id, source.checkpoint)
            assert reports_of(tuner, trial, 1)[-1] == saved_step(source) + 3

    def test_an_added_trial_starts_from_the_checkpoint_of_another_one(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.checkpoint)
        source = tuner.trial("0001").record

        tuner.add(played(ENDLESS), source=source.id)
        drive(tuner, lambda: len(tuner.running_trials) == 2 and tuner.trial("0002").record.reports)

        trial = tuner.trial("0002").record
        assert trial.parent == source.id
        assert reports_of(tuner, trial, 1)[0] > 1

    def test_the_scheduler_starts_a_trial_from_the_checkpoint_of_another_one(self, tune: Tune) -> None:
        def decide(trial: Trial, _: Report) -> Decision:
            return Decision(Action.PAUSE, "to be forked") if trial.id == "0001" else CONTINUE

        def choose(trials: Mapping[TrialId, Trial]) -> Choice | None:
            if [trial.status for trial in trials.values()] != [TrialStatus.PAUSED]:
                return None
            length = saved_step(trials[TrialId("0001")]) + 4
            return Fork(TrialId("0001"), played(length, x=3), "from what is paused")

        tuner = tune(played(ENDLESS), scheduler=Rule(decide, choose))
        drive(tuner, lambda: tuner.get_trials(TrialStatus.COMPLETED))

        trial = tuner.trial("0002").record
        assert (trial.parent, trial.config["x"]) == ("0001", 3)
        assert (trial.history[0].by, trial.history[1].reason) == ("scheduler", "from what is paused")
        assert reports_of(tuner, trial, 1)[-1] == saved_step(tuner.trial("0001").record) + 4
        assert reports_of(tuner, trial, 1)[0] > 1

    def test_a_clone_has_the_config_and_begins_from_scratch(self, tune: Tune) -> None:
        tuner = tune(played(2, x=4))
        drive(tuner, lambda: tuner.is_finished)

        trial = tuner.add(tuner.trial("0001").record.config)
        drive(tuner, lambda: tuner.is_finished)

        assert (trial.id, trial.config, trial.parent) == ("0002", tuner.trial("0001").record.config, None)
        assert reports_of(tuner, trial, 1) == [1, 2]

    def test_a_trial_may_fail_as_often_as_it_likes_if_that_is_asked_for(self, tune: Tune) -> None:
        tuner = tune(played(5, fails_after=0), failures=Failures(max_failures=-1))

        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.failures >= 4)

        trial = tuner.trial("0001").record
        assert trial.is_busy
        tuner.trial(trial).stop()
        drive(tuner, lambda: tuner.is_finished)
        assert trial.status is TrialStatus.EARLY_STOPPED

    # Pausing.

    def test_the_scheduler_pauses_trials_and_resumes_them(self, tune: Tune) -> None:
        def decide(trial: Trial, report: Report) -> Decision:
            is_first = trial.attempt.number == 1 and report.sequence == 2
            return Decision(Action.PAUSE, "the others first") if is_first else CONTINUE

        def choose(trials: Mapping[TrialId, Trial]) -> Choice | None:
            paused = [trial.id for trial in trials.values() if trial.status is TrialStatus.PAUSED]
            if len(trials) < 3 or not paused:
                return None
            # It may have come further than it was told to before it heard of the pause.
            return Resume(paused[0], "now it may", played(attempt_and_number(trials[paused[0]].checkpoint)[1] + 3, x=3))

        tuner = tune(*[played(ENDLESS) for _ in range(3)], scheduler=Rule(decide, choose))
        drive(tuner, lambda: tuner.is_finished)

        assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.COMPLETED] * 3
        for trial in tuner.get_trials():
            assert [attempt.end for attempt in trial.attempts] == [AttemptEnd.PAUSED, AttemptEnd.COMPLETED]
            assert trial.attempts[0].stop is not None
            assert trial.attempts[0].stop.sequence == 2
            assert reports_of(tuner, trial, 1) == [1, 2]
            assert reports_of(tuner, trial, 2)[-1] == trial.config["length"]
            assert (trial.config["x"], trial.history[4][2:]) == (3, ("now it may", "scheduler"))

    def test_the_scheduler_resumes_a_trial_from_the_checkpoint_of_another_one(self, tune: Tune) -> None:
        def decide(trial: Trial, _: Report) -> Decision:
            return Decision(Action.PAUSE) if trial.id == "0001" and trial.attempt.number == 1 else CONTINUE

        def choose(trials: Mapping[TrialId, Trial]) -> Choice | None:
            first, source = trials.get(TrialId("0001")), trials.get(TrialId("0002"))
            if first is None or source is None or first.status is not TrialStatus.PAUSED or source.reports < 20:
                return None
            return Resume(first.id, "does what the other does", played(ENDLESS, x=2), source.id)

        tuner = tune(played(ENDLESS), played(ENDLESS, x=5), scheduler=Rule(decide, choose))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.attempt.number == 2)
        trial = tuner.trial("0001").record
        drive(tuner, lambda: trial.attempt.reports)

        assert (trial.attempt.source, trial.config["x"], trial.parent) == ("0002", 2, None)
        assert reports_of(tuner, trial, 2)[0] > 20
        assert trial.last_metrics["loss"] == 2 / last_step(trial)

    def test_paused_trials_that_nothing_resumes_are_an_error_and_a_user_may_resume_them(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(2))
        trial = pause_after(tuner, 2)
        drive(tuner, lambda: not tuner.busy_trials)

        with pytest.raises(NothingResumes, match=r"1 trials are paused .*0001.* resume or abandon them"):
            tuner.step()

        tuner.trial(trial).resume({"length": 50})
        drive(tuner, lambda: tuner.is_finished)
        assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.COMPLETED] * 2

    @pytest.mark.parametrize(
        ("call", "status"),
        [("stop", TrialStatus.EARLY_STOPPED), ("abandon", TrialStatus.ABANDONED)],
    )
    def test_a_paused_trial_ends_where_it_is(self, tune: Tune, call: str, status: TrialStatus) -> None:
        tuner = tune(played(ENDLESS))
        trial = pause_after(tuner, 2)

        getattr(tuner.trial(trial), call)("no longer wanted")

        assert (trial.status, trial.reason, trial.history[-1].by) == (status, "no longer wanted", "user")
        assert tuner.is_finished
        assert len(trial.attempts) == 1

    # Ending.

    def test_an_abandoned_config_is_not_proposed_again(self, tune: Tune) -> None:
        space = Space({**SPACE, **played(2, x=1), "x": choice([1.0, 2.0])})
        given_up = RandomSearcher(space, seed=0).suggest(TrialId("0001"))
        assert given_up is not None
        tuner = tune(
            space=space, searcher=RandomSearcher(space, seed=0), max_trials=1, run=RunOptions(max_concurrent=1)
        )
        trial = tuner.add(given_up)

        tuner.trial(trial).abandon("it makes no sense")
        drive(tuner, lambda: tuner.is_finished)

        assert trial.status is TrialStatus.ABANDONED
        assert [other.config["x"] for other in tuner.get_trials()[1:]] == [3.0 - given_up["x"]]

    def test_the_first_failure_stops_all_if_that_is_asked_for(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(3, fails_after=1), played(3), played(3), failures=Failures(fail_fast=True))

        results = tuner.run()

        failed = tuner.get_trials(TrialStatus.FAILED)
        assert [trial.id for trial in failed] == ["0002"]
        assert tuner.get_trials()[0].status is TrialStatus.EARLY_STOPPED
        assert "trial 0002 failed: RuntimeError: failed as planned after step 1" in tuner.get_trials()[0].reason
        assert not tuner.busy_trials
        assert results.outcome == "finished"

    @pytest.mark.parametrize(
        ("stop", "reason"),
        [
            ({"step": 3}, "step"),
            (lambda _, report: report.metrics["step"] >= 3, ""),
        ],
        ids=["bound", "function"],
    )
    def test_a_rule_ends_each_trial(self, tune: Tune, stop: Any, reason: str) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS, x=2), stop=stop)
        drive(tuner, lambda: tuner.is_finished)

        for trial in tuner.get_trials():
            assert trial.status is TrialStatus.COMPLETED
            assert reports_of(tuner, trial, 1) == [1, 2, 3]
            assert trial.attempt.stop is not None
            assert trial.attempt.stop.by == "stop rule"
            assert reason in trial.reason

    @pytest.mark.parametrize(
        ("stop", "reason"),
        [
            (lambda: TargetReached(0.21), "trial 0002 has reached the target"),
            (lambda: TrialsCompleted(1), "1 trials have completed"),
            (lambda: TimeLimit(0.3), "the time limit of 0.3 s is over"),
        ],
        ids=["target", "completed", "time"],
    )
    def test_a_rule_ends_the_experiment(self, tune: Tune, stop: Callable[[], StopRule], reason: str) -> None:
        rule = stop()
        is_count = isinstance(rule, TrialsCompleted)
        first = played(2 if is_count else ENDLESS, x=9)
        tuner = tune(first, played(ENDLESS, x=1), *[played(ENDLESS, x=9)] * 2, stop=rule)
        drive(tuner, lambda: tuner.is_finished)

        stopped = tuner.get_trials(TrialStatus.EARLY_STOPPED)
        assert stopped
        assert all(reason in trial.reason and trial.history[-1].by == "stop rule" for trial in stopped)
        assert len(stopped) + is_count == len(tuner.get_trials())

    # Observing.

    def test_trials_are_found_by_status_and_by_id(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(2), played(2, fails_after=0))
        ended = (TrialStatus.COMPLETED, TrialStatus.FAILED)
        drive(tuner, lambda: tuner.running_trials and len(tuner.get_trials(*ended)) == 2)

        assert [trial.id for trial in tuner.get_trials()] == ["0001", "0002", "0003"]
        assert [trial.id for trial in tuner.get_trials(TrialStatus.FAILED, TrialStatus.RUNNING)] == ["0001", "0003"]
        assert [trial.id for trial in tuner.running_trials] == ["0001"]
        assert tuner.trial("0002").record.status is TrialStatus.COMPLETED

    def test_who_asks_first_gets_all_reports_so_far(self, tune: Tune) -> None:
        tuner = tune(played(3), played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials(TrialStatus.COMPLETED))

        first = [report.sequence for report in tuner.new_reports() if report.trial == "0001"]

        assert first == [1, 2, 3]
        assert [report for report in tuner.new_reports() if report.trial == "0001"] == []

    def test_each_failed_trial_is_named_once(self, tune: Tune) -> None:
        tuner = tune(played(2, fails_after=1), played(2), played(2, fails_after=0))
        drive(tuner, lambda: tuner.is_finished)

        found = [tuner.next_failed_trial(), tuner.next_failed_trial()]

        assert {trial.id for trial in found if trial is not None} == {"0001", "0003"}
        assert tuner.next_failed_trial() is None

    def test_a_run_that_is_over_can_still_be_looked_at(self, tune: Tune) -> None:
        tuner = tune(played(3), played(1, fails_after=0))
        tuner.run()

        trial = tuner.trial("0001").record

        assert (trial.status, trial.reports) == (TrialStatus.COMPLETED, 3)
        assert (tuner.trial(trial).stdout() == ["continues after step 0"]) is self.runs_processes
        assert [report.sequence for report in tuner.new_reports()] == [1, 2, 3]
        failed = tuner.next_failed_trial()
        assert failed is not None
        assert failed.id == "0002"
        assert tuner.is_finished
        assert len(list(Results.load(tuner.name).reports())) == 3

    def test_results_stand_in_the_experiments_folder(self, tune: Tune) -> None:
        tuner = tune(played(3, x=2), played(3, x=1))
        tuner.run()

        found = Results.load(tuner.name)

        assert (tuner.folder.name, found.outcome) == (tuner.name, "finished")
        assert {path.name for path in tuner.folder.iterdir()} >= {"journal.msgpack", "trials.csv", "results.json"}
        assert [(result.id, result.value) for result in found] == [("0001", 2 / 3), ("0002", 1 / 3)]
        assert found.best.config == played(3, x=1)

    def test_the_entry_point_is_the_trainables_file(self, tune: Tune) -> None:
        assert tune(played(1)).entry_point == Path(play.__file__)

    def test_a_few_lines_say_how_it_stands(self, tune: Tune) -> None:
        tuner = tune(played(2, x=3), played(ENDLESS, x=9))
        drive(tuner, lambda: tuner.get_trials(TrialStatus.COMPLETED) and tuner.running_trials)

        said = tuner.debug_string()

        assert tuner.name in said
        assert "1 RUNNING" in said
        assert "1 COMPLETED" in said
        assert "best loss=" in said

    def test_each_step_of_a_trial_records_its_time_its_reason_and_who_decided(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        trial = await_reports(tuner, 1)
        tuner.trial(trial).pause("lunch")
        drive(tuner, lambda: trial.status is TrialStatus.PAUSED)
        tuner.trial(trial).resume(reason="coffee")
        drive(tuner, lambda: trial.attempt.reports)
        tuner.trial(trial).abandon("home")
        drive(tuner, lambda: tuner.is_finished)

        worker = trial.attempt.worker
        assert [(step.status.value, step.reason, step.by) for step in trial.history] == [
            ("candidate", "", "searcher"),
            ("staged", "", "searcher"),
            ("running", "", worker),
            ("paused", "lunch", "user"),
            ("staged", "coffee", "user"),
            ("running", "", worker),
            ("abandoned", "home", "user"),
        ]
        assert all(before.at <= after.at for before, after in pairwise(trial.history))
        assert trial.time_created is not None
        assert trial.time_completed is not None
        assert trial.time_created.utcoffset() is not None
        assert trial.time_created <= trial.time_completed
        assert [(attempt.stop.by, attempt.stop.reason) for attempt in trial.attempts if attempt.stop] == [
            ("user", "lunch"),
            ("user", "home"),
        ]

    def test_callbacks_hear_of_each_stage_of_a_trial_in_order(self, tune: Tune) -> None:
        heard = _Heard()
        tuner = tune(played(ENDLESS), run=RunOptions(callbacks=[heard]))
        trial = await_reports(tuner, 2)
        tuner.trial(trial).pause()
        drive(tuner, lambda: trial.status is TrialStatus.PAUSED)
        tuner.trial(trial).resume()
        drive(tuner, lambda: trial.attempt.reports)
        tuner.trial(trial).stop()
        drive(tuner, lambda: tuner.is_finished)
        tuner.close()

        stages = [name for name in heard.events if name not in {"step", "report", "checkpoint"}]
        assert stages == [
            *("start", "stage", "trial start", "decision", "attempt end paused", "pause"),
            *("stage", "resume", "trial start", "decision", "attempt end stopped", "trial end", "end"),
        ]
        assert heard.events.count("report") == trial.reports
        assert heard.events.count("checkpoint") >= trial.reports
        assert "step" in heard.events
        assert heard.threads == {heard.threads.copy().pop()}

    def test_a_callback_that_raises_harms_nothing(self, tune: Tune) -> None:
        tuner = tune(played(3), run=RunOptions(callbacks=[_Broken()]))

        tuner.run()

        assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.COMPLETED]

    # Refusing.

    @pytest.mark.parametrize("call", CALLS)
    def test_a_trial_that_has_ended_stays_as_it_is(self, tune: Tune, call: str) -> None:
        tuner = tune(played(1), played(20))
        drive(tuner, lambda: tuner.get_trials(TrialStatus.COMPLETED))
        (trial,) = tuner.get_trials(TrialStatus.COMPLETED)
        before = list(trial.history)

        with pytest.raises(InvalidTransition, match=rf"trial {trial.id} is COMPLETED and can't"):
            CALLS[call](tuner, trial)

        drive(tuner, lambda: tuner.is_finished)
        assert trial.history == before
        assert {other.status for other in tuner.get_trials()} == {TrialStatus.COMPLETED}

    @pytest.mark.parametrize("call", ["complete", "pause", "save"])
    def test_a_paused_trial_can_not_do_what_only_a_running_one_can(self, tune: Tune, call: str) -> None:
        tuner = tune(played(ENDLESS))
        trial = pause_after(tuner, 1)

        with pytest.raises(InvalidTransition, match="trial 0001 is PAUSED and can't"):
            CALLS[call](tuner, trial)

        assert trial.status is TrialStatus.PAUSED
        tuner.trial(trial).resume()
        drive(tuner, lambda: trial.attempt.reports)

    def test_a_trial_that_runs_is_not_resumed(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.running_trials)

        with pytest.raises(InvalidTransition, match="trial 0001 is RUNNING and can't be resumed; only a PAUSED trial"):
            tuner.trial("0001").resume()

        drive(tuner, lambda: tuner.trial("0001").record.reports >= 3)
        assert len(tuner.trial("0001").record.attempts) == 1

    @pytest.mark.parametrize("call", FROM_ANOTHER)
    def test_nothing_starts_from_a_trial_without_a_checkpoint(self, tune: Tune, call: str) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS), saves=False)
        drive(tuner, lambda: len(tuner.running_trials) == 2)

        with pytest.raises(ConfigurationError, match=r"trial 0001 has no checkpoint to start from"):
            FROM_ANOTHER[call](tuner, tuner.trial("0001").record)

        drive(tuner, lambda: all(trial.reports >= 3 for trial in tuner.get_trials()))
        assert len(tuner.get_trials()) == 2
        assert [trial.attempt.stop for trial in tuner.get_trials()] == [None, None]

    @pytest.mark.parametrize("what", [*CALLS, "source", "get"])
    def test_a_trial_that_is_not_there_is_named(self, tune: Tune, what: str) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.running_trials)
        more: dict[str, Callable[[Any], Any]] = {
            "source": lambda id_: tuner.add(played(1), source=id_),
            "get": tuner.trial,
        }

        with pytest.raises(ConfigurationError, match=r"no trial '0815' in experiment"):
            more[what]("0815") if what in more else CALLS[what](tuner, TrialId("0815"))

        assert len(tuner.get_trials()) == 1
        drive(tuner, lambda: tuner.trial("0001").record.reports >= 2)

    def test_an_experiment_that_is_finished_can_not_be_stepped(self, tune: Tune) -> None:
        tuner = tune(played(1))
        drive(tuner, lambda: tuner.is_finished)

        with pytest.raises(ExperimentFinished, match="is finished"):
            tuner.step()

        trial = tuner.add(played(1))
        drive(tuner, lambda: tuner.is_finished)
        assert trial.status is TrialStatus.COMPLETED

    def test_an_added_trial_still_starts_when_its_source_has_ended_meanwhile(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(20, x=9), run=RunOptions(max_concurrent=2))
        drive(tuner, lambda: len(tuner.running_trials) == 2 and tuner.trial("0002").record.checkpoint)
        source = tuner.trial("0002").record

        tuner.add(played(ENDLESS, x=8), source=source)
        drive(tuner, lambda: source.status is TrialStatus.COMPLETED)
        drive(tuner, lambda: len(tuner.get_trials()) == 3 and tuner.trial("0003").record.reports)

        assert tuner.trial("0003").record.attempt.source == source.id

    def test_what_was_refused_is_not_in_the_journal(self, tune: Tune) -> None:
        tuner = tune(played(4), played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials(TrialStatus.COMPLETED))
        for call in CALLS.values():
            with pytest.raises(MqtuneError):
                call(tuner, tuner.trial("0001").record)
        name = tuner.name
        tuner.close()

        again = tune(played(4), played(ENDLESS), name=name)
        drive(again, lambda: again.running_trials)

        first, second = again.get_trials()
        assert (first.status, first.attempt.stop) == (TrialStatus.COMPLETED, None)
        assert (second.status, len(second.attempts)) == (TrialStatus.RUNNING, 1)


class _Heard(Callback):
    def __init__(self) -> None:
        self.events: list[str] = []
        self.threads: set[int] = set()

    def _hear(self, event: str) -> None:
        self.events.append(event)
        self.threads.add(threading.get_ident())

    def on_start(self, experiment: object) -> None:
        self._hear("start")

    def on_step(self, waiting_for: str) -> None:
        self._hear("step")

    def on_stage(self, trial: Trial) -> None:
        self._hear("stage")

    def on_trial_start(self, trial: Trial) -> None:
        self._hear("trial start")

    def on_report(self, trial: Trial, report: Report) -> None:
        self._hear("report")

    def on_decision(self, trial: Trial, decision: Decision) -> None:
        self._hear("decision")

    def on_checkpoint(self, trial: Trial, checkpoint: CheckpointId) -> None:
        self._hear("checkpoint")

    def on_attempt_end(self, trial: Trial, attempt: object) -> None:
        assert trial.attempt.end is not AttemptEnd.LOST
        self._hear(f"attempt end {trial.attempt.end.value if trial.attempt.end else ''}")

    def on_trial_pause(self, trial: Trial) -> None:
        self._hear("pause")

    def on_trial_resume(self, trial: Trial) -> None:
        self._hear("resume")

    def on_trial_end(self, trial: Trial) -> None:
        self._hear("trial end")

    def on_end(self) -> None:
        self._hear("end")


class _Broken(Callback):
    def on_report(self, trial: Trial, report: Report) -> None:
        raise ValueError("a callback's own mistake")

    def on_trial_end(self, trial: Trial) -> None:
        raise ValueError("another one")
