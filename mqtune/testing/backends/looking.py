"""What a user sees of trials and of the backend, and what is recorded of each attempt."""

from __future__ import annotations

import threading
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from mqtune.core.callback import Callback
from mqtune.core.errors import InsufficientResources
from mqtune.core.resources import Resources
from mqtune.core.trial import AttemptEnd, CheckpointId, Decision, Report, Trial, TrialStatus
from mqtune.driver.settings import Failures, Run
from mqtune.results.callbacks import ERROR_FILE
from mqtune.results.results import Results
from mqtune.testing import play
from mqtune.testing.backends.world import InWorld, Tune, drive
from mqtune.testing.play import ENDLESS, played
from mqtune.testing.waiting import eventually

_NOBODY_OFFERS = Resources(gpus=1)


class LookingContract(InWorld):
    """What there is to see."""

    # Trials and their reports.

    def test_trials_are_found_by_status_and_by_id(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(2), played(2, fails_after=0))
        ended = (TrialStatus.COMPLETED, TrialStatus.FAILED)
        drive(tuner, lambda: tuner.running_trials and len(tuner.get_trials(*ended)) == 2)

        assert [trial.id for trial in tuner.get_trials()] == ["0001", "0002", "0003"]
        assert [trial.id for trial in tuner.get_trials(TrialStatus.FAILED, TrialStatus.RUNNING)] == ["0001", "0003"]
        assert [trial.id for trial in tuner.running_trials] == ["0001"]
        assert tuner.trial("0002").record.status is TrialStatus.COMPLETED

    def test_a_trial_is_busy_until_its_process_is_gone(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.reports)
        trial = tuner.trial("0001").record

        tuner.trial(trial).stop()

        assert (trial.status, tuner.busy_trials) == (TrialStatus.RUNNING, [trial])
        drive(tuner, lambda: trial.status is TrialStatus.EARLY_STOPPED)
        assert tuner.busy_trials == []

    def test_new_reports_come_once_by_time_across_trials_and_by_sequence_within_one(self, tune: Tune) -> None:
        tuner = tune(played(8), played(5), played(5))
        looks: list[list[Report]] = [tuner.new_reports()]
        while not tuner.is_finished:
            tuner.step(0.1)
            looks.append(tuner.new_reports())

        assert tuner.new_reports() == []
        for look in looks:
            assert all(before.timestamp <= after.timestamp for before, after in pairwise(look))
        found = [(report.trial, report.sequence) for look in looks for report in look]
        for trial, count in (("0001", 8), ("0002", 5), ("0003", 5)):
            assert [sequence for id_, sequence in found if id_ == trial] == list(range(1, count + 1))

    def test_every_report_has_its_iteration_and_times_which_go_on_after_a_resume(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.reports >= 2)
        trial = tuner.trial("0001").record
        tuner.trial(trial).pause()
        drive(tuner, lambda: trial.status is TrialStatus.PAUSED)
        checkpoint = trial.checkpoint
        tuner.trial(trial).resume()
        drive(tuner, lambda: trial.attempt.reports >= 2)

        reports = list(tuner.results().reports(trial.id))
        # What came after the decision to pause may have saved the checkpoint.
        first = [report.metrics for report in reports if report.attempt == 1]
        second = [report.metrics for report in reports if report.attempt == 2]
        saved = next(report.metrics for report in reports if report.checkpoint == checkpoint)
        for begin, rows in (({"training_iteration": 0, "time_total_s": 0.0}, first), (saved, second)):
            assert [row["training_iteration"] for row in rows] == [
                begin["training_iteration"] + number for number in range(1, len(rows) + 1)
            ]
            times = accumulate((row["time_this_iter_s"] for row in rows), initial=begin["time_total_s"])
            assert [row["time_total_s"] for row in rows] == pytest.approx(list(times)[1:])
            assert min(row["time_this_iter_s"] for row in rows) > 0

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

    def test_the_lines_that_a_trial_printed_are_those_of_its_last_attempt(self, tune: Tune) -> None:
        tuner = tune(played(5, fails_after=3), failures=Failures(max_failures=1))
        drive(tuner, lambda: tuner.is_finished)

        lines = (tuner.trial("0001").stdout(), tuner.trial("0001").stderr())

        printed = (["goes on behind step 3"], ["and says so"])
        assert lines == (printed if self.runs_processes else ([], []))

    def test_a_run_that_is_over_can_still_be_looked_at(self, tune: Tune) -> None:
        tuner = tune(played(3), played(1, fails_after=0))
        tuner.run()

        trial = tuner.trial("0001").record

        assert (trial.status, trial.reports) == (TrialStatus.COMPLETED, 3)
        assert (tuner.trial(trial).stdout() == ["goes on behind step 0"]) is self.runs_processes
        assert [report.sequence for report in tuner.new_reports()] == [1, 2, 3]
        failed = tuner.next_failed_trial()
        assert failed is not None
        assert failed.id == "0002"
        assert tuner.is_finished
        assert len(list(Results.load(tuner.name).reports())) == 3

    # The experiment.

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

    # What the backend offers.

    def test_what_the_slots_offer_is_told(self, tune: Tune) -> None:
        tuner = tune(played(1))

        assert tuner.slots == 2
        # A worker says some seconds later that what ran before has gone.
        eventually(lambda: tuner.free_slots == 2)
        assert tuner.has_resources(Resources(cpus=1))
        assert not tuner.has_resources(_NOBODY_OFFERS)
        assert not tuner.has_resources(Resources(tags=["no-worker-has-it"]))
        assert tuner.has_gpus() is False
        assert "2" in tuner.resource_string()
        assert "1 CPU" in tuner.resource_string()

    def test_a_slot_is_free_until_a_trial_has_it_and_again_when_that_is_gone(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS))

        drive(tuner, lambda: len(tuner.running_trials) == 2)
        assert (tuner.slots, tuner.free_slots, tuner.has_resources(Resources(cpus=1))) == (2, 0, False)
        tuner.trial("0001").stop()
        drive(tuner, lambda: not tuner.trial("0001").record.is_busy)
        drive(tuner, lambda: tuner.free_slots == 1)
        assert tuner.has_resources(Resources(cpus=1))

    def test_what_nobody_offers_is_waited_for_and_named(self, tune: Tune) -> None:
        tuner = tune(played(1), resources=_NOBODY_OFFERS)

        tuner.step(0.01)

        assert tuner.get_trials() == []
        assert not tuner.is_finished
        assert "no worker offers a slot with 1 GPU" in tuner.debug_string()

    def test_what_nobody_offers_is_an_error_if_trials_may_not_wait(self, tune: Tune) -> None:
        tuner = tune(played(1), resources=_NOBODY_OFFERS, run=Run(queue_trials=False))

        with pytest.raises(InsufficientResources, match=r"1 GPU, 1 CPU.*1 CPU"):
            tuner.run()

        assert tuner.get_trials() == []

    # Records.

    def test_an_attempt_records_where_and_when_it_ran(self, tune: Tune) -> None:
        tuner = tune(played(2))
        drive(tuner, lambda: tuner.is_finished)

        attempt = tuner.trial("0001").record.attempt
        assert attempt.worker
        assert attempt.host
        assert attempt.queue
        assert attempt.pid > 0
        assert attempt.devices == ()
        assert attempt.started_at is not None
        assert attempt.ended_at is not None
        assert attempt.staged_at <= attempt.started_at <= attempt.ended_at
        assert (attempt.exit_code, attempt.signal, attempt.error) == (0, None, "")
        environment = {"python", "platform", "mqtune", "packages", "code"} if self.runs_processes else set()
        assert attempt.environment.keys() == environment

    def test_an_attempt_that_failed_records_its_error(self, tune: Tune) -> None:
        tuner = tune(played(2, fails_after=1))
        drive(tuner, lambda: tuner.is_finished)

        trial = tuner.trial("0001").record
        assert (trial.attempt.exit_code, trial.attempt.error_type) == (1, "RuntimeError")
        assert "it was to fail behind step 1" in trial.attempt.error
        assert "Traceback" in trial.attempt.error or not self.runs_processes
        tuner.close()
        assert "it was to fail behind step 1" in (tuner.folder / ERROR_FILE).read_text(encoding="utf-8")

    def test_each_step_of_a_trial_records_its_time_its_reason_and_who_decided(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.reports)
        trial = tuner.trial("0001").record
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
        tuner = tune(played(ENDLESS), run=Run(callbacks=[heard]))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.reports >= 2)
        trial = tuner.trial("0001").record
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
        tuner = tune(played(3), run=Run(callbacks=[_Broken()]))

        tuner.run()

        assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.COMPLETED]


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
