"""Clocks that are hours off, or are set back while a trial runs, change nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import textwrap
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest
import trainables
from running import running_worker

import mqtune
from mqtune.core.events import DecisionTaken, decode_event
from mqtune.journal import JOURNAL_FILE, JournalFile
from mqtune.results.results import Results

HOUR_S: Final = 3600.0
#: Far more than it takes here, far less than a clock is off; and how well a busy machine may know the server's time.
SOON_S: Final = 300.0
ABOUT_S: Final = 5.0
#: Slots of shapes that no other test's worker has: those of the machines whose clocks are wrong, and of one whose is right.
WRONG, RIGHT = mqtune.Resources(cpus=6), mqtune.Resources(cpus=7)
#: Python runs this on a machine when it starts: its clock is off by so much, and is set back by an hour every 0.2 s.
SITE = """
    import time
    from os import environ

    if "OFF_S" in environ:
        right, began, ns = time.time, time.monotonic(), 10**9

        def wrong():
            back_s = (time.monotonic() - began) // 0.2 * 3600 if "STEPS" in environ else 0
            return right() + float(environ["OFF_S"]) - back_s

        time.time, time.time_ns = wrong, lambda: int(wrong() * ns)
"""


@pytest.fixture(scope="module")
def machines(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a broker with a worker five hours ahead, one five hours behind, and a right one.

    The clock of the second one steps back.
    """
    folder = tmp_path_factory.mktemp("machines")
    (folder / "sitecustomize.py").write_text(textwrap.dedent(SITE))
    wrong = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    slot = ("--gpus", "0", "--slots", "1", "--cpus")
    with contextlib.ExitStack() as stack:
        for name, cpus, environment in (
            ("ahead", "6", {**wrong, "OFF_S": str(5 * HOUR_S)}),
            ("behind", "6", {**wrong, "OFF_S": str(-5 * HOUR_S), "STEPS": "yes"}),
            ("right", "7", {}),
        ):
            log = folder / f"{name}.log"
            stack.enter_context(running_worker(broker, log, *slot, cpus, name=name, environment=environment))
        yield broker


def what_was_decided(results: Results) -> list[Any]:
    """Return the trials with their ends, the decisions with their reasons, and the reports."""
    entries = JournalFile(results.folder / JOURNAL_FILE).read()
    decided = [event for entry in entries if isinstance(event := decode_event(entry.data), DecisionTaken)]
    return [
        [(trial.id, trial.config, trial.status, trial.reason, len(trial.attempts)) for trial in results],
        [(event.trial, event.sequence, event.action, event.reason) for event in decided],
        [(report.trial, report.sequence, report.metrics["loss"], report.late) for report in results.reports()],
    ]


def run(broker: str, name: str, resources: mqtune.Resources) -> Results:
    """Tune one trial after the other, so that decisions do not depend on their speed."""
    return mqtune.Tuner(
        trainables.tells_time,
        {"lr": mqtune.uniform(0, 1)},
        metric="loss",
        mode="min",
        backend=broker,
        name=name,
        scheduler=mqtune.ASHA(9, grace_period=1, reduction_factor=3),
        seed=5,
        stop=mqtune.TimeLimit(HOUR_S)
        | mqtune.TimeLimit(HOUR_S, count="driver_time")
        | mqtune.TimeLimit(HOUR_S, count="trial_time"),
        max_trials=8,
        run=mqtune.RunOptions(max_concurrent=1, progress=False),
        process=mqtune.Process(timeout_s=HOUR_S, sync="lockstep"),
        resources=resources,
    ).run()


def test_clocks_that_are_hours_off_change_no_decision_and_no_time(machines: str) -> None:
    began = time.time()
    right, wrong = run(machines, "clocks-right", RIGHT), run(machines, "clocks-wrong", WRONG)

    assert what_was_decided(wrong) == what_was_decided(right)
    assert {attempt.worker.partition("@")[0] for trial in wrong for attempt in trial.attempts} == {"ahead", "behind"}
    times = []
    for report in wrong.reports():
        # The trial's own clock was wrong.
        assert abs(report.metrics["clock"] - report.timestamp) > HOUR_S
        times.append(report.timestamp)
    # One trial ran after the other, on one machine or the other.
    assert all(later > earlier - ABOUT_S for earlier, later in itertools.pairwise(times))
    assert began - SOON_S < times[0] <= times[-1] < time.time() + SOON_S
    for trial in (each.trial for each in wrong):
        moments = [step.at for step in trial.history]
        assert all(-ABOUT_S < later - earlier < SOON_S for earlier, later in itertools.pairwise(moments))
        assert 0 <= trial.run_s < SOON_S
