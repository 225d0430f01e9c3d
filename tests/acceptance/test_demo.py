"""``mqtune demo``, as a person sees it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from terminal import processes_in, terminal
from waiting import eventually

from mqtune.core.trial import TrialStatus
from mqtune.results.results import Results

MQTUNE = (sys.executable, "-m", "mqtune")
#: Enough of the demo's 150 trials to show what it does.
TRIALS = 30
SHORTER = f"""
import mqtune, mqtune.cli
mqtune.Tuner = lambda *given, tuner=mqtune.Tuner, **more: tuner(*given, **{{**more, "max_trials": {TRIALS}}})
mqtune.cli.group()
"""
#: How long a wait for the demo may last: it takes 25 s on two free cores, and beside other tests it took up to 150 s.
DEMO_S = 300


def percent(text: str, before: str) -> float:
    found = re.search(rf"{before}: ([\d.]+)%", text)
    assert found is not None, text
    return float(found[1])


@pytest.mark.timeout(3 * DEMO_S)
def test_the_demo_tunes_on_real_workers_goes_on_where_it_was_and_says_what_it_brought(mqtune_home: Path):
    command = [sys.executable, "-c", SHORTER, "demo"]

    with terminal(command) as screen:
        screen.wait_for(r"[1-9]\d completed|[1-9]\d early stopped", DEMO_S)
        screen.press(b"\x03")
        assert screen.wait(DEMO_S) == 130
        assert "with name='demo-1', or" in screen.text
        assert screen.raw.rindex(b"\x1b[?25h") > screen.raw.rindex(b"\x1b[?25l")
    eventually(lambda: not processes_in(mqtune_home), why="Ctrl-C left a process behind")
    halfway = Results.load("demo-1")
    assert halfway.outcome == "interrupted"
    assert 10 <= len(halfway) < TRIALS

    with terminal(command) as screen:
        assert screen.wait(DEMO_S) == 0
        text = screen.text

    assert f"{TRIALS} trials" in text
    assert "running" in text
    assert percent(text, "digits") > percent(text, "default config") + 2
    saved = re.search(r"epochs: ([\d,]+) run, ([\d,]+) saved by ASHA", text)
    assert saved is not None
    assert int(saved[1].replace(",", "")) < int(saved[2].replace(",", ""))
    assert screen.raw.rindex(b"\x1b[?25h") > screen.raw.rindex(b"\x1b[?25l")
    eventually(lambda: not processes_in(mqtune_home), why="the demo left a process behind")

    results = Results.load("demo-1")
    assert (results.outcome, len(results)) == ("finished", TRIALS)
    assert [result.config for result in results][: len(halfway)] == [result.config for result in halfway]
    assert {result.status for result in results} == {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
    assert all(result.attempts[-1].worker.startswith("local-") for result in results)
