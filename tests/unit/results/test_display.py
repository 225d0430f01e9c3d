from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from book import Book
from waiting import eventually

from mqtune.core.events import TrialStaged, decode_event
from mqtune.core.experiment import Experiment
from mqtune.core.trial import AttemptEnd, TrialId
from mqtune.results import ProgressConsole, ProgressDisplay, UnblockedStream

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Watched:
    """An experiment, the progress that watches it, and what that has written."""

    def __init__(self, home: Path, *, live: bool = True, width: int = 100, height: int = 30, **options: Any) -> None:
        self.book = Book(home)
        self.file = io.StringIO()
        self.now = 100.0
        self.experiment = Experiment("mine", metric="loss", mode="min")
        console = ProgressConsole(file=self.file, force_terminal=live, width=width, height=height, _environ={})
        self.progress = ProgressDisplay(console=console, clock=lambda: self.now, **options)
        self.told = 0
        self.tell()

    def tell(self) -> None:
        """Tell the progress what the book has gained, as the driver would."""
        for entry in self.book.entries[self.told :]:
            event = decode_event(entry.data)
            assert event is not None
            self.experiment.apply(event)
            trial = self.experiment.trials.get(getattr(event, "trial", ""))
            if isinstance(event, TrialStaged):
                self.progress.on_queue(self.experiment.trials[TrialId(event.trial)])
            if trial is not None and trial.status.is_terminal:
                self.progress.on_trial_end(trial)
        self.told = len(self.book.entries)

    def step(self, waiting_for: str = "", *, after_s: float = 1.0) -> str:
        """Take a step *after_s* seconds later, and return what was written at it."""
        self.now += after_s
        before = len(self.file.getvalue())
        self.tell()
        self.progress.on_step(waiting_for)
        return self.file.getvalue()[before:]

    def end(self) -> str:
        before = len(self.file.getvalue())
        self.tell()
        self.progress.on_end()
        return self.file.getvalue()[before:]


@pytest.fixture
def live(tmp_path: Path) -> Watched:
    watched = Watched(tmp_path / "mine", total=lambda: 8)
    watched.progress.on_start(watched.experiment)
    return watched


@pytest.fixture
def lines(tmp_path: Path) -> Watched:
    watched = Watched(tmp_path / "mine", live=False)
    watched.progress.on_start(watched.experiment)
    return watched


def test_a_cell_has_one_output_that_is_drawn_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[str] = []
    cell = SimpleNamespace(update=lambda page: drawn.append(f"over: {page}"))
    module = SimpleNamespace(HTML=str, display=lambda page, display_id: drawn.append(page) or cell)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=module))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    watched = Watched(tmp_path / "mine")
    console = ProgressConsole(file=io.StringIO(), force_jupyter=True, _environ={})
    watched.progress = ProgressDisplay(console=console, clock=lambda: watched.now)
    watched.progress.on_start(watched.experiment)
    watched.book.stage("0001", {"kind": "<b>bold</b>"})

    watched.step()
    watched.book.report("0001", {"loss": 0.25})
    watched.end()

    assert len(drawn) == 2
    assert "1 running" in drawn[0]
    assert drawn[1].startswith("over: <pre")
    assert "best loss=0.25" in drawn[1]
    assert "<b>" not in "".join(drawn)
    assert "<svg" not in drawn[0]
    assert "loss: 0.25 → 0.25" in drawn[1]


def test_the_table_shows_counts_the_best_trial_and_each_trial_those_that_run_first(live: Watched):
    live.book.run("0001", 0.5, 0.25, config={"lr": 0.125})
    live.book.stage("0002")
    live.book.stage("0003", start=False)
    live.book.run("0004", 0.5)

    shown = live.step()

    assert "2/8 trials: 1 queued, 1 running, 2 completed" in shown
    assert "3 reports" in shown
    assert "best loss=0.25 in trial 0001: lr=0.125" in shown
    assert "w1@host" in shown
    table = shown[shown.index("iteration") :]
    assert sorted(("0001", "0002", "0003", "0004"), key=table.index) == ["0002", "0003", "0004", "0001"]


@pytest.mark.parametrize(
    ("total", "words"),
    [
        (12, "less than a minute left"),
        (41, "about 5 min left"),
        (1_000, "about 3 h left"),
        (20_000, "about 2 days left"),
    ],
)
def test_the_remaining_time_is_estimated_after_ten_trials_and_without_seconds(tmp_path: Path, total: int, words: str):
    watched = Watched(tmp_path / "mine", total=lambda: total)
    # A trial that ended before this driver began says nothing about its pace.
    watched.book.run("0001", 0.5)
    watched.tell()
    watched.progress.on_start(watched.experiment)
    for number in range(2, 11):
        watched.book.run(f"{number:04d}", 0.5)
    before = watched.step(after_s=90.0)
    watched.book.run("0011", 0.5)

    shown = watched.step(after_s=10.0)

    assert "━" in before
    assert " left" not in before
    assert words in shown
    assert " left" not in watched.end()


@pytest.mark.parametrize("width", [1, 10, 59, 60, 300])
def test_no_terminal_is_too_narrow_and_no_config_too_large(tmp_path: Path, width: int):
    watched = Watched(tmp_path / "mine", width=width, height=3)
    watched.progress.on_start(watched.experiment)
    huge = {f"parameter_{number}": {"nested": "x" * 10_000, "list": [0.1] * 1000} for number in range(100)}
    watched.book.run("0001", math.nan, -math.inf, config=huge)
    watched.book.stage("0002", {"markup": "[/bold red]", "control": "\x1b[2J\r\n\x07", "wide": "数" * 50, "none": None})
    watched.book.report("0002", {"loss": math.nan})
    watched.book.report("0002", {"loss": "a text", "training_iteration": 10**18})

    shown = watched.step("waiting for [nothing] \x1b[2J in particular") + watched.step() + watched.end()

    assert "\x1b[2J" not in shown
    assert len(shown) < 50_000


@pytest.mark.parametrize(("part", "error"), [("trial_table", ZeroDivisionError), ("best_text", KeyboardInterrupt)])
def test_the_terminal_is_left_in_order_after_an_error_or_ctrl_c_in_the_middle_of_drawing(
    live: Watched, monkeypatch: pytest.MonkeyPatch, part: str, error: type[BaseException]
):
    def fail(*_: Any, **__: Any) -> None:
        raise error

    live.step()
    assert HIDE_CURSOR in live.file.getvalue()
    monkeypatch.setattr(f"mqtune.results.display.{part}", fail)
    live.book.run("0001", 0.5)
    with pytest.raises(error):
        live.step()

    if error is KeyboardInterrupt:
        monkeypatch.undo()
    with contextlib.nullcontext() if error is KeyboardInterrupt else pytest.raises(error):
        live.end()

    assert live.file.getvalue().rindex(SHOW_CURSOR) > live.file.getvalue().rindex(HIDE_CURSOR)


def test_without_a_terminal_a_line_comes_every_ten_seconds_if_something_changed(lines: Watched):
    written = []
    for number in range(1, 51):
        lines.book.run(f"{number:04d}", 0.5)
        written.append(lines.step(after_s=0.5))
    unchanged = [lines.step() for _ in range(60)]

    assert sum(map(bool, written)) == 3
    assert sum(map(bool, unchanged)) == 1
    assert "mine · 1 trial: 1 completed · 1 report · 0 s · best loss=0.5 in trial 0001: lr=0.1\n" in written
    assert not any("\x1b" in line for line in written)


@pytest.mark.parametrize("is_live", [True, False])
def test_at_the_end_it_says_what_failed_first_and_where_all_of_it_is(tmp_path: Path, is_live: bool):
    watched = Watched(tmp_path / "mine", live=is_live, folder=tmp_path / "mine")
    watched.progress.on_start(watched.experiment)
    for trial, error in (("0001", "ValueError: no"), ("0002", "KeyError: 'x'")):
        watched.book.stage(trial)
        watched.book.end(trial, AttemptEnd.FAILED, error_type=error.split(":")[0], error=error)

    said = (
        f"every trial failed (2), first trial 0001: ValueError: no; full errors in {tmp_path / 'mine' / 'errors.txt'}"
    )
    assert said in watched.end().splitlines()[-1]


@pytest.mark.parametrize(
    ("output", "error"), [("lines", BrokenPipeError()), ("live", OSError(5, "Input/output error"))], ids=str
)
def test_a_reader_or_terminal_that_goes_away_does_not_end_the_experiment(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, output: str, error: OSError
):
    watched: Watched = request.getfixturevalue(output)
    watched.step()

    def gone(_: str) -> int:
        raise error

    monkeypatch.setattr(watched.file, "write", gone)
    watched.book.run("0001", 0.5)

    watched.step()
    watched.step()
    watched.end()


def test_a_wait_whose_text_counts_seconds_is_shown_after_two_and_then_now_and_then(lines: Watched):
    written = [lines.step(f"importing your code ({second} s)") for second in range(1, 16)]

    shown = [text.strip() for text in written if text.strip()]
    assert shown == ["importing your code (3 s)", "importing your code (13 s)"]
    # Another reason is shown at once.
    assert lines.step("starting the local worker").strip() == "starting the local worker"


def screen_of(text: str, *, columns: int, lines: int) -> list[str]:
    """Return the lines that a terminal of this size has been written, also those that have left it at its top."""
    above: list[str] = []
    rows, row, column = [""] * lines, 0, 0
    for control, count, kind, char in re.findall(r"(\x1b\[\??(\d*)(?:;\d+)*([A-Za-z]))|([\s\S])", text):
        number = int(count or 1)
        if kind in ("A", "B"):
            row = max(0, min(lines - 1, row - number if kind == "A" else row + number))
        elif kind == "M":
            rows[row:] = [*rows[row + number :], *[""] * (lines - row)][: lines - row]
        elif kind == "K":
            rows[row] = "" if count == "2" else rows[row][:column]
        elif char == "\r":
            column = 0
        elif char == "\n" or (char and column == columns):
            row, column = row + 1, 0
            if row == lines:
                above.append(rows.pop(0))
                rows, row = [*rows, ""], lines - 1
        if char and char not in "\r\n":
            rows[row] = rows[row].ljust(column)[:column] + char + rows[row][column + 1 :]
            column += 1
        assert control or char
    return [line.rstrip() for line in (*above, *rows)]


@pytest.mark.parametrize("said_first", [False, True], ids=["echo first", "message first"])
@pytest.mark.parametrize(("columns", "height"), [(100, 30), (80, 30), (100, 8), (30, 12)])
def test_what_ctrl_c_says_stands_above_one_table(tmp_path: Path, columns: int, height: int, said_first: bool) -> None:
    said: list[str] = []
    watched = Watched(tmp_path / "mine", width=columns, height=height, said=lambda: "".join(said), total=lambda: 8)
    watched.file.write("$ python tune.py\n" * 4)
    watched.progress.on_start(watched.experiment)
    for trial in ("0001", "0002", "0003"):
        # As wide as the terminal.
        watched.book.stage(trial, {"optimizer": "x" * 100})
        watched.step()

    message = "\nStopping: running trials are queued again for the next run. Ctrl-C again ends immediately.\n"
    # A terminal may show the key before or after the message.
    watched.file.write(f"{message}^C" if said_first else f"^C{message}")
    said.append("Stopping: running trials are queued again for the next run. Ctrl-C again ends immediately.")
    watched.book.end("0001", AttemptEnd.HANDED_BACK)
    watched.step()
    watched.book.run("0004", 0.5)
    watched.step()
    watched.end()

    shown = screen_of(watched.file.getvalue(), columns=columns, lines=height)
    heads = [place for place, line in enumerate(shown) if line.startswith("mine · ")]
    (place_said,) = [place for place, line in enumerate(shown) if line.startswith("Stopping: ")]
    assert shown[:4] == ["$ python tune.py"] * 4
    assert len(heads) == 1, shown
    assert place_said == 4
    assert heads[0] == place_said + math.ceil(len(said[0]) / columns)


def test_a_line_that_comes_while_a_frame_is_drawn_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    pending: list[str] = []

    @contextlib.contextmanager
    def undisturbed() -> Iterator[None]:
        yield
        for line in pending:
            watched.file.write(f"^C\n{line}\n")
            said.append(line)
        pending.clear()

    options = {"said": lambda: "".join(said), "undisturbed": undisturbed}
    watched = Watched(tmp_path / "mine", width=80, **options)
    watched.progress.on_start(watched.experiment)
    watched.book.stage("0001")
    watched.step()
    # As a signal's handler does in the middle of drawing.
    monkeypatch.setattr("mqtune.results.display.best_text", lambda _: pending.append("Stopping: …") or "")
    watched.step()
    monkeypatch.undo()
    watched.step()
    watched.end()

    shown = [line for line in screen_of(watched.file.getvalue(), columns=80, lines=30) if line]
    assert shown[0] == "Stopping: …"
    assert [line.startswith("mine · ") for line in shown].count(True) == 1


def test_a_stuck_reader_does_not_stop_the_driver_and_sees_the_end_once_it_reads(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    # As a terminal after Ctrl-S.
    full = fill(writing)
    with os.fdopen(writing, "w") as stream:
        console = ProgressConsole(file=UnblockedStream(stream), width=80, force_terminal=False)
        progress = ProgressDisplay(console=console, deciders="asha", clock=itertools.count(step=100.0).__next__)
        progress.on_start(Experiment("mine", metric="loss", mode="min"))

        began = time.monotonic()
        for _ in range(1_000):
            progress.on_step("a slot")
        assert time.monotonic() - began < 5, "it waits for the reader once"

        ending = threading.Thread(target=progress.on_end)
        ending.start()
        seen = b""
        while b"0 trials" not in seen[full:]:
            seen += os.read(reading, 65536)
        ending.join()
        eventually(lambda: "mqtune-display" not in {thread.name for thread in threading.enumerate()})
    os.close(reading)
    assert b"mine \xc2\xb7 asha" in seen


def fill(pipe: int) -> int:
    """Fill a pipe, and return its size."""
    os.set_blocking(pipe, False)
    size = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            size += os.write(pipe, b" " * 4096)
    os.set_blocking(pipe, True)
    return size
