"""Tests of the information about trials, slots and attempts that users get."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Final

import pytest

from mqtune.core.errors import ConfigurationError, InsufficientResources
from mqtune.core.resources import Resources
from mqtune.core.trial import Config, Report, TrialStatus
from mqtune.driver.setup.options import RunOptions
from mqtune.results.callbacks import ERROR_FILE
from mqtune.testing.backends.world import Tune, TunerTests, await_reports, drive, pause_after
from mqtune.testing.play import ENDLESS, played
from mqtune.testing.waiting import eventually

_NOT_OFFERED: Final = Resources(gpus=1)


class ObservingContract(TunerTests):
    def test_a_trial_is_busy_until_its_process_has_ended(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        trial = await_reports(tuner, 1)

        tuner.trial(trial).stop()

        assert (trial.status, tuner.busy_trials) == (TrialStatus.RUNNING, [trial])
        drive(tuner, lambda: trial.status is TrialStatus.EARLY_STOPPED)
        assert tuner.busy_trials == []

    def test_new_reports_are_returned_once_and_in_order(self, tune: Tune) -> None:
        tuner = tune(played(8), played(5), played(5))
        batches: list[list[Report]] = [tuner.new_reports()]
        while not tuner.is_finished:
            tuner.step(0.1)
            batches.append(tuner.new_reports())

        assert tuner.new_reports() == []
        for batch in batches:
            assert all(before.timestamp <= after.timestamp for before, after in pairwise(batch))
        reported = [(report.trial, report.sequence) for batch in batches for report in batch]
        for trial, count in (("0001", 8), ("0002", 5), ("0003", 5)):
            assert [sequence for id_, sequence in reported if id_ == trial] == list(range(1, count + 1))

    def test_iterations_and_times_continue_after_a_resume(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        trial = pause_after(tuner, 2)
        checkpoint = trial.checkpoint
        tuner.trial(trial).resume()
        drive(tuner, lambda: trial.attempt.reports >= 2)

        reports = list(tuner.results().reports(trial.id))
        first = [report.metrics for report in reports if report.attempt == 1]
        second = [report.metrics for report in reports if report.attempt == 2]
        # A late report may have saved the checkpoint, too.
        saved = next(report.metrics for report in reports if report.checkpoint == checkpoint)
        for begin, rows in (({"training_iteration": 0, "time_total_s": 0.0}, first), (saved, second)):
            assert [row["training_iteration"] for row in rows] == [
                begin["training_iteration"] + number for number in range(1, len(rows) + 1)
            ]
            times = accumulate((row["time_this_iter_s"] for row in rows), initial=begin["time_total_s"])
            assert [row["time_total_s"] for row in rows] == pytest.approx(list(times)[1:])
            assert min(row["time_this_iter_s"] for row in rows) > 0

    def test_slots_and_their_resources_are_told(self, tune: Tune) -> None:
        tuner = tune(played(1))

        assert tuner.slots == 2
        # A worker publishes a released slot after some seconds.
        eventually(lambda: tuner.free_slots == 2)
        assert tuner.has_resources(Resources(cpus=1))
        assert not tuner.has_resources(_NOT_OFFERED)
        assert not tuner.has_resources(Resources(tags=["no-worker-has-it"]))
        assert tuner.has_gpus() is False
        assert "2" in tuner.resource_string()
        assert "1 CPU" in tuner.resource_string()

    def test_a_slot_is_not_free_while_a_trial_has_it(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS))

        drive(tuner, lambda: len(tuner.running_trials) == 2)
        assert (tuner.slots, tuner.free_slots, tuner.has_resources(Resources(cpus=1))) == (2, 0, False)
        tuner.trial("0001").stop()
        drive(tuner, lambda: not tuner.trial("0001").record.is_busy)
        drive(tuner, lambda: tuner.free_slots == 1)
        assert tuner.has_resources(Resources(cpus=1))

    def test_resources_that_no_slot_offers_are_waited_for_and_named(self, tune: Tune) -> None:
        tuner = tune(played(1), resources=_NOT_OFFERED)

        tuner.step(0.01)

        assert tuner.get_trials() == []
        assert not tuner.is_finished
        assert "no worker offers a slot with 1 GPU" in tuner.debug_string()

    def test_resources_that_no_slot_offers_are_an_error_if_trials_may_not_wait(self, tune: Tune) -> None:
        tuner = tune(played(1), resources=_NOT_OFFERED, run=RunOptions(queue_trials=False))

        with pytest.raises(InsufficientResources, match=r"1 GPU, 1 CPU.*1 CPU"):
            tuner.run()

        assert tuner.get_trials() == []

    def test_trials_may_ask_by_their_configs_or_the_experiment_is_refused(self, tune: Tune) -> None:
        def by_x(config: Config) -> Resources:
            return Resources(cpus=1) if config["x"] < 5 else _NOT_OFFERED

        tuner = tune(played(1, x=1), played(1, x=9), resources=by_x, run=RunOptions(queue_trials=False))
        try:
            tuner.step(0.01)
        except ConfigurationError as error:
            # A backend may support or refuse this.
            assert "all get the same" in str(error)  # noqa: PT017
            return
        drive(tuner, lambda: tuner.is_finished)

        fits, never = tuner.get_trials()
        assert (fits.status, fits.attempt.resources) == (TrialStatus.COMPLETED, Resources(cpus=1))
        assert (never.status, never.attempt.resources) == (TrialStatus.FAILED, _NOT_OFFERED)
        assert "no worker offers a slot with 1 GPU" in never.reason

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
        assert attempt.queued_at <= attempt.started_at <= attempt.ended_at
        assert (attempt.exit_code, attempt.signal, attempt.error) == (0, None, "")
        environment = {"python", "platform", "mqtune", "packages", "code"} if self.runs_processes else set()
        assert attempt.environment.keys() == environment

    def test_a_failed_attempt_records_its_error(self, tune: Tune) -> None:
        tuner = tune(played(2, fails_after=1))
        drive(tuner, lambda: tuner.is_finished)

        trial = tuner.trial("0001").record
        assert (trial.attempt.exit_code, trial.attempt.error_type) == (1, "RuntimeError")
        assert "failed as planned after step 1" in trial.attempt.error
        assert "Traceback" in trial.attempt.error or not self.runs_processes
        tuner.close()
        assert "failed as planned after step 1" in (tuner.folder / ERROR_FILE).read_text(encoding="utf-8")
