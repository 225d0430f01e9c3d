"""A trial ends as a program does; its error names the code that keeps it from its end, and values that can't be reported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from harness import Finished, Programs

from mqtune.core.trial import TrialStatus

#: How long a trial may run on after the report that stops it, in seconds: it reports each 0.05 s, and used to get SIGTERM after 10 s.
STOPPED_S = 6.0


def test_what_is_left_to_the_end_of_the_process_is_done(programs: Programs):
    tracked = programs.project / "tracked"
    shutil.rmtree(tracked, ignore_errors=True)
    programs.check("wandb_like.py")
    records = {file.name: json.loads(file.read_text()) for file in tracked.iterdir()}
    by_hand = {file.name: json.loads(file.read_text()) for file in (programs.untouched / "tracked").iterdir()}
    assert {name: record["uploads"] for name, record in records.items()} == {
        name: record["uploads"] for name, record in by_hand.items()
    }
    assert not [record["cache"] for record in records.values() if Path(record["cache"]).exists()]


def seconds_after_stop(finished: Finished) -> list[float]:
    """How long each stopped trial ran on after the last report that counts."""
    stopped = [trial for trial in finished.results if trial.status is TrialStatus.EARLY_STOPPED]
    last = {report.trial: report.timestamp for report in finished.results.reports() if not report.late}
    return [trial.attempts[-1].ended_at - last[trial.id] for trial in stopped]


# The way in which a program runs makes no difference to these ends: each is tested in one.
@pytest.mark.parametrize("programs", ["fleet"], indirect=True)
def test_a_bare_except_keeps_no_stopped_trial_in_its_slot_and_its_error_says_why(programs: Programs):
    finished = programs.run("bare_except.py", name="stubborn")
    held = seconds_after_stop(finished)
    assert held
    assert max(held) < STOPPED_S
    stopped = [trial for trial in finished.results if trial.status is TrialStatus.EARLY_STOPPED]
    assert [trial.id for trial in stopped if "except" not in trial.attempts[-1].error] == []


@pytest.mark.parametrize("programs", ["alone"], indirect=True)
def test_a_report_that_can_not_be_sent_ends_the_run_at_the_first_trials(programs: Programs):
    finished = programs.run("object_reported.py", code=1)
    failed = [trial for trial in finished.results if trial.status is TrialStatus.FAILED]
    # Trials in other slots may have failed too before the run has ended.
    assert 1 <= len(failed) <= 4
    assert "'score'" in finished.output


@pytest.mark.parametrize("programs", ["fleet"], indirect=True)
def test_the_error_of_a_trial_says_that_its_reports_came_from_a_child(programs: Programs):
    finished = programs.run("child_reports.py")
    errors = {
        f"{trial.config['method']} {trial.config['x']}": trial.error or trial.reason for trial in finished.results
    }
    assert len(errors) == 4
    assert not {name: error for name, error in errors.items() if "child" not in error}
