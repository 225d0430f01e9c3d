"""The error log: every failure once, with its time, whatever happens to the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from book import Book

from mqtune.core.events import AttemptEnded, decode_event
from mqtune.core.experiment import Experiment
from mqtune.core.trial import AttemptEnd
from mqtune.results import ErrorLog

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in f\n\nValueError: no data'


class Watched:
    """An experiment and the error log that hears of it, as from the driver."""

    def __init__(self, folder: Path, *, max_failures: int = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "errors.txt"
        self.book = Book(folder, max_failures=max_failures)
        self.experiment = Experiment("mine", metric="loss", mode="min", max_failures=max_failures)
        self.log = ErrorLog(folder)
        self.told = 0

    def read(self, *, tell: bool = True) -> None:
        for entry in self.book.entries[self.told :]:
            event = decode_event(entry.data)
            assert event is not None
            self.experiment.apply(event)
            if tell and isinstance(event, AttemptEnded):
                trial = self.experiment.trials[event.trial]
                self.log.on_attempt_end(trial, trial.attempts[event.attempt - 1])
        self.told = len(self.book.entries)

    def resume(self) -> None:
        self.log = ErrorLog(self.path.parent)
        self.log.on_start(self.experiment)

    def fail(self, name: str = "0001", **details: Any) -> None:
        self.book.stage(name)
        self.book.end(
            name, AttemptEnd.FAILED, **{"error_type": "ValueError", "error": TRACEBACK, "exit_code": 1} | details
        )

    @property
    def heads(self) -> list[str]:
        return [line for line in self.path.read_text().splitlines() if line and not line.startswith(" ")]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "mine")


def test_each_failed_attempt_is_written_with_its_time_trial_worker_and_traceback(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "mine", max_failures=1)
    watched.fail()
    watched.read()
    first = (
        "2023-11-14T22:13:23.000+00:00 trial 0001 attempt 1, on w1@host, ValueError, exit code 1\n"
        "    Traceback (most recent call last):\n"
        '      File "train.py", line 3, in f\n'
        "    ValueError: no data\n"
        "\n"
    )
    assert watched.path.read_text() == first
    watched.fail()
    watched.book.stage("0002")
    watched.book.end("0002", AttemptEnd.LOST)
    watched.fail("0003", error="killed", error_type="", exit_code=None, signal=9)

    watched.read()

    assert watched.path.read_text().startswith(first)
    assert [head.partition(" ")[2] for head in watched.heads[1:]] == [
        "trial 0001 attempt 2, on w1@host, ValueError, exit code 1",
        "trial 0002 attempt 1, on w1@host, its worker was lost",
        "trial 0003 attempt 1, on w1@host, signal 9",
    ]


def test_a_resumed_driver_adds_what_no_driver_saw_and_nothing_twice(watched: Watched) -> None:
    watched.fail("0001")
    watched.read()
    before = watched.path.read_text()
    watched.fail("0003")
    watched.fail("0002")
    watched.book.run("0004")
    watched.read(tell=False)

    watched.resume()
    watched.resume()
    for trial in watched.experiment.trials.values():
        watched.log.on_attempt_end(trial, trial.attempt)

    assert watched.path.read_text().startswith(before)
    assert [head.split()[2] for head in watched.heads] == ["0001", "0003", "0002", "0004"]


def test_half_an_entry_that_a_crash_left_stays_apart_from_the_next_and_is_written_again(watched: Watched) -> None:
    watched.fail("0001")
    watched.read()
    whole = watched.path.read_text()
    watched.path.write_text(whole[:50])

    watched.resume()

    assert watched.path.read_text() == f"{whole[:50]}\n\n{whole}"
