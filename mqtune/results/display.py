"""Experiments and trials in a terminal: tables, single lines, and a run's live table."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, TextIO, cast

from rich.console import Console, Group
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mqtune.core.background import Background
from mqtune.core.callback import Callback
from mqtune.core.experiment import Experiment
from mqtune.core.text import counted, flatten, printable, replace_unencodable
from mqtune.core.trial import ITERATION, Attempt, Config, Trial, TrialId, TrialStatus
from mqtune.results.best_curve import BestCurve
from mqtune.results.callbacks import ERROR_FILE
from mqtune.results.experiments import duration

#: The most shown characters of a value, and the most shown entries of a config.
_VALUE_CHARS: Final = 30
_CONFIG_ENTRIES: Final = 20

_STYLES: Final = {
    TrialStatus.RUNNING: "cyan",
    TrialStatus.PAUSED: "blue",
    TrialStatus.COMPLETED: "green",
    TrialStatus.FAILED: "bold red",
    TrialStatus.ABANDONED: "red",
}


def short_value(value: object) -> str:
    """Return a value in a few characters: floats with four digits, and long values cut."""
    if isinstance(value, float):
        return f"{value:.4g}"
    # A list of a million numbers must not be written out only to be cut.
    shown = value if isinstance(value, list | str | bytes) and len(value) > _VALUE_CHARS else None
    text = str(value if shown is None else shown[:_VALUE_CHARS]).replace("\n", " ")
    return printable(text if len(text) <= _VALUE_CHARS and shown is None else text[: _VALUE_CHARS - 1] + "…")


def short_config(config: Config) -> str:
    """Return a config on one line, such as ``lr=0.01 layers.width=64``, cut if it is long."""
    items = flatten(config)
    parts = [f"{printable(name)}={short_value(value)}" for name, value in islice(items, _CONFIG_ENTRIES)]
    return " ".join(parts) + (" …" if next(items, None) is not None else "")


def counts_text(experiment: Experiment, total: int | None = None) -> str:
    """Return the numbers of trials, such as "3/10 trials: 1 running, 3 completed".

    *total* is the number of planned trials. If it is None, the text begins with the number of existing trials.
    """
    counts = [f"{count} {status.value.replace('_', ' ')}" for status, count in experiment.counts.items() if count]
    is_planned = total is not None and total >= len(experiment.trials)
    number = f"{_ended(experiment)}/{total} trials" if is_planned else counted(len(experiment.trials), "trial")
    return number + (f": {', '.join(counts)}" if counts else "")


def _ended(experiment: Experiment) -> int:
    return sum(count for status, count in experiment.counts.items() if status.is_terminal)


def best_text(experiment: Experiment) -> str:
    """Return the best value, its trial and config on one line. It is empty if there is no value.

    With several metrics, return the size of the Pareto front, and the range of each metric on it.
    """
    best = experiment.best
    if best is None:
        return _front_text(experiment)
    failed = " (which has failed)" if best.status is TrialStatus.FAILED else ""
    value = f"best {experiment.metric}={short_value(best.best_value)}"
    return f"{value} in trial {best.id}{failed}: {short_config(best.config)}"


def _front_text(experiment: Experiment) -> str:
    front = experiment.pareto_front
    if not front:
        return ""
    values = {name: [trial.best_metrics[name] for trial in front] for name in experiment.objective.metrics}
    ranges = ", ".join(
        f"{name} {short_value(min(value))} to {short_value(max(value))}" for name, value in values.items()
    )
    return f"Pareto front: {counted(len(front), 'trial')}, {ranges}"


def ranked(experiment: Experiment) -> list[Trial]:
    """Return all trials, the best first.

    Trials that violate an outcome constraint come after the others, and trials without a value and abandoned ones last.
    With several metrics, the Pareto front comes first, and trials are otherwise ranked by the first metric.
    """
    if not experiment.objective.is_single:
        front = {trial.id for trial in experiment.pareto_front}
        return sorted(
            experiment.trials.values(),
            key=lambda t: (t.id not in front, t.is_abandoned, not t.point, not experiment.is_feasible(t), t.point),
        )
    feasible: list[Trial] = []
    infeasible: list[Trial] = []
    last: list[Trial] = []
    has_constraints = bool(experiment.objective.constraints)
    for trial in experiment.trials.values():
        if math.isnan(trial.best_value) or trial.is_abandoned:
            last.append(trial)
        elif has_constraints and not experiment.is_feasible(trial):
            infeasible.append(trial)
        else:
            feasible.append(trial)
    sign = 1 if experiment.mode == "min" else -1
    for trials in (feasible, infeasible):
        trials.sort(key=lambda trial: sign * trial.best_value)
    return [*feasible, *infeasible, *last]


class Column(NamedTuple):
    """A column of a table of trials."""

    head: str
    cell: Callable[[Experiment, Trial], str]
    justify: Literal["left", "right"] = "left"
    #: The width of the narrowest terminal that shows the column.
    from_width: int = 0
    max_width: int | None = None


def _iteration(_: Experiment, trial: Trial) -> str:
    return str(trial.last_metrics.get(ITERATION, trial.attempt.reports if trial.attempts else 0))


def _last(experiment: Experiment, trial: Trial) -> str:
    return short_value(trial.last_metrics[experiment.metric]) if experiment.metric in trial.last_metrics else ""


def _worker_text(attempt: Attempt) -> str:
    others = len({task.worker for task in attempt.further_tasks} - {attempt.worker})
    return printable(attempt.worker) + (f" +{others}" if others else "")


_BEFORE: Final = (
    Column("trial", lambda _, trial: trial.id),
    Column("status", lambda _, trial: trial.status.value.replace("_", " ")),
    Column("iteration", _iteration, "right"),
)
_VALUES: Final = (
    Column("last", _last, "right", max_width=12),
    Column("best", lambda _, trial: short_value(trial.best_value) if trial.has_metric else "", "right", max_width=12),
)
_FEASIBLE: Final = Column(
    "feasible", lambda experiment, trial: "no" if trial.best_metrics and not experiment.is_feasible(trial) else ""
)
_AFTER: Final = (
    Column("worker", lambda _, trial: _worker_text(trial.attempts[-1]) if trial.attempts else "", "left", 90, 24),
    Column("tags", lambda _, trial: printable(", ".join(trial.labels.tags)), "left", 60, 24),
    Column("config", lambda _, trial: short_config(trial.config), "left", 60),
)


def columns_of(experiment: Experiment) -> tuple[Column, ...]:
    """Return the columns of a table of an experiment's trials."""
    feasible = (_FEASIBLE,) if experiment.objective.constraints else ()
    if experiment.objective.is_single:
        return (*_BEFORE, *_VALUES, *feasible, *_AFTER)
    front = {trial.id for trial in experiment.pareto_front}
    on_front = Column("front", lambda _, trial: "yes" if trial.id in front else "")
    return (*_BEFORE, *map(_column_of, experiment.objective.metrics), on_front, *feasible, *_AFTER)


def _column_of(metric: str) -> Column:
    return Column(
        printable(metric), lambda _, trial: short_value(trial.best_metrics.get(metric, "")), "right", max_width=12
    )


def trial_table(experiment: Experiment, trials: Iterable[Trial], *, width: int) -> Table:
    """Return a table of *trials* for a terminal of *width* columns."""
    trials = list(trials)
    has_tags = any(trial.labels.tags for trial in trials)
    columns = [
        column
        for column in columns_of(experiment)
        if width >= column.from_width and (has_tags or column.head != "tags")
    ]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        # In a narrow terminal, rich first shrinks columns that may wrap. This one's cells are cut instead.
        may_shrink = column.head == "config"
        table.add_column(
            column.head, justify=column.justify, no_wrap=not may_shrink, max_width=column.max_width, header_style="bold"
        )
    for trial in trials:
        table.add_row(*(_cell(column, experiment, trial) for column in columns))
    return table


def _cell(column: Column, experiment: Experiment, trial: Trial) -> Text:
    style = _STYLES.get(trial.status, "") if column.head == "status" else ""
    # A Text, as rich would read markup in a config's strings.
    return Text(column.cell(experiment, trial), style, no_wrap=True, overflow="ellipsis")


#: The width of a table in a notebook, in characters.
_NOTEBOOK_WIDTH: Final = 115
_PRE: Final = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'


def experiment_html(experiment: Experiment) -> str:
    """Return an experiment's counts and best trials as a notebook's HTML. User text is escaped."""
    trials = ranked(experiment)
    lines: list[Text | Table] = [Text(f"{printable(experiment.name)} · {counts_text(experiment)}", style="bold")]
    if best := best_text(experiment):
        lines.append(Text(best, style="green", no_wrap=True, overflow="ellipsis"))
    if trials:
        lines += [Text(), trial_table(experiment, trials[:ROWS_MOST], width=_NOTEBOOK_WIDTH)]
    if len(trials) > ROWS_MOST:
        lines.append(Text(f"… and {len(trials) - ROWS_MOST} more: results.dataframe()"))
    return _html(*lines)


def trial_html(trial: Trial, values: Mapping[str, object]) -> str:
    """Return a trial's status, ranked values, config and reason as HTML for a notebook."""
    shown = ", ".join(f"{printable(name)}={short_value(value)}" for name, value in values.items())
    lines = [Text(f"trial {trial.id} · {trial.status.value.replace('_', ' ')} · {shown}", style="bold")]
    if trial.reason:
        lines.append(Text(printable(trial.reason), style=_STYLES.get(trial.status, "")))
    lines += [
        Text(f"  {printable(name)} = {short_value(value)}")
        for name, value in islice(flatten(trial.config), _CONFIG_ENTRIES)
    ]
    return _html(*lines)


def _html(*parts: Text | Table | Group) -> str:
    console = Console(record=True, file=io.StringIO(), width=_NOTEBOOK_WIDTH, force_jupyter=False)
    console.print(Group(*parts))
    return console.export_html(inline_styles=True, code_format=_PRE)


#: Seconds between redraws of the table, which then cost about 2 % of a core.
REDRAW_S: Final = 0.25
#: Seconds between lines, so that a night's run leaves a readable log, and between checks of whether one is due.
LINE_S: Final = 10.0
LINE_CHECK_S: Final = 1.0
#: A wait is shown only after these seconds, as the start of a local worker takes about as long.
WAITING_S: Final = 2.0
ROWS_MOST: Final = 10
_LINES_AROUND: Final = 7
#: The bar's width in characters, and the fewest lines of a terminal that shows it.
_BAR_WIDTH: Final = 40
_BAR_HEIGHT: Final = 12
#: The remaining time is estimated only when this many trials have ended.
_ESTIMATED_FROM: Final = 10
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_NUMBERS: Final = re.compile(r"\d+")
#: If a frame is not written within these seconds, the reader counts as stuck.
_STUCK_S: Final = 0.1
#: Seconds to wait for a stuck reader at the end.
_FINISH_S: Final = 2.0
_ECHO: Final = "^C"


def _time_left(seconds: float) -> str:
    """Return a remaining time in words, without seconds."""
    if seconds < _MINUTE_S:
        return "less than a minute left"
    for unit_s, unit in ((_DAY_S, "day"), (_HOUR_S, "h")):
        if seconds >= 2 * unit_s:
            count = round(seconds / unit_s)
            return f"about {counted(count, unit) if unit == 'day' else f'{count} {unit}'} left"
    return f"about {round(seconds / _MINUTE_S)} min left"


class ProgressConsole(Console):
    """A console that raises BrokenPipeError if its reader is gone, where rich would exit."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class UnblockedStream(io.TextIOBase):
    """A text stream that a stuck reader, such as a terminal after Ctrl-S, can't block.

    A thread writes directly to the file descriptor. If it used *stream* and got stuck, that stream's lock would keep
    Python from exiting.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._parts: list[str] = []
        self._writer = Background("mqtune-display")
        self._written = threading.Event()
        self._written.set()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def is_stuck(self) -> bool:
        """Whether the reader has not read all flushed text."""
        return not self._written.is_set()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        self._parts.append(text)
        return len(text)

    def flush(self) -> None:
        """Have the thread write the text. Wait briefly until it is written.

        So the text of others usually comes after it.

        Raises:
            OSError: the reader is gone.
        """
        self._writer.check()
        data, was_stuck = "".join(self._parts).encode(self.encoding, self._stream.errors or "replace"), self.is_stuck
        self._parts.clear()
        if not data:
            return
        self._writer.start()
        self._written = written = threading.Event()
        self._writer.tell(partial(self._write_all, data, written))
        if not was_stuck:
            self.wait(_STUCK_S)

    def wait(self, seconds: float) -> None:
        self._written.wait(seconds)

    def finish(self, seconds: float) -> None:
        self.wait(seconds)
        self._writer.close()

    def _write_all(self, data: bytes, written: threading.Event) -> None:
        try:
            while data:
                data = data[os.write(self.fileno(), data) :]
        finally:
            written.set()


class ProgressDisplay(Callback):
    """Shows a running experiment: a live table, or without a terminal a line every ten seconds.

    The table is drawn in a notebook's cell, else on standard error if that is a terminal, else on standard output.
    Lines go to standard error. If the reader is gone, drawing stops. While the reader is stuck, frames are skipped. The
    experiment continues in both cases. The work of a step does not grow with the number of ended trials.

    The callback runs in the driver's loop, as it reads the whole experiment a few times a second.

    Args:
        total: returns the number of planned trials, which may change, or None.
        folder: the experiment's folder, named in the text about failed trials.
        console: the console to draw on, instead of these streams.
        clock: a monotonic clock, in seconds.
        said: returns the line that the driver printed below the table after Ctrl-C, or an empty text.
        deciders: the searcher and scheduler in words, for the first line.
        undisturbed: returns a context during which the driver prints no such line.
    """

    in_loop = True

    def __init__(
        self,
        *,
        total: Callable[[], int | None] = lambda: None,
        folder: Path | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        said: Callable[[], str] = str,
        deciders: str = "",
        undisturbed: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._undisturbed = undisturbed
        self._deciders = deciders
        self._total = total
        self._said = said
        self._moved_for = ""
        self._folder = folder
        self._console = console if console is not None else _console()
        self._clock = clock
        is_terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._is_live = is_terminal or self._console.is_jupyter
        self.interval_s = REDRAW_S if self._is_live else LINE_CHECK_S
        self._experiment: Experiment | None = None
        self._live: Live | None = None
        self._picture_drawn = Constrain(Group())
        self._cell: Any = None
        self._curve = BestCurve("")
        self._began_at = 0.0
        self._ended_before = 0
        self._shown_at = -math.inf
        self._line = ""
        self._waiting_for = ""
        self._waiting_since = 0.0
        self._waiting_shown = ""
        self._waiting_shown_at = -math.inf
        self._open: dict[TrialId, Trial] = {}
        self._ended: deque[Trial] = deque(maxlen=ROWS_MOST)

    def on_start(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._curve = BestCurve(experiment.metric)
        self._began_at = self._clock()
        self._ended_before = _ended(experiment)
        for trial in experiment.trials.values():
            if trial.status.is_terminal:
                self._ended.append(trial)
            else:
                self._open[trial.id] = trial
        if self._deciders:
            with self._quiet_when_nobody_reads():
                self._print_line(f"{printable(experiment.name)} · {printable(self._deciders)}")

    def on_queue(self, trial: Trial) -> None:
        self._open[trial.id] = trial

    def on_step(self, waiting_for: str) -> None:
        now = self._clock()
        if waiting_for and not self._waiting_for:
            self._waiting_since = now
        self._waiting_for = waiting_for
        if now - self._shown_at < REDRAW_S or self._experiment is None or self._is_stuck:
            return
        with self._quiet_when_nobody_reads():
            self._redraw(self._experiment, now) if self._is_live else self._write_lines(self._experiment, now)

    def on_trial_end(self, trial: Trial) -> None:
        self._open.pop(trial.id, None)
        self._ended.append(trial)

    def on_end(self) -> None:
        experiment = self._experiment
        if experiment is None:
            return
        self._waiting_for = ""
        try:
            with self._quiet_when_nobody_reads():
                if self._is_live:
                    self._redraw(experiment, self._clock(), final=True)
                else:
                    self._print_line(self._summary(experiment))
                self._stop_live()
                self._print_failures(experiment)
                if isinstance(self._console.file, UnblockedStream):
                    self._console.file.finish(_FINISH_S)
        finally:
            self._stop_live()
            self._experiment = None

    @contextlib.contextmanager
    def _quiet_when_nobody_reads(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            # The terminal or pipe is gone, which must not end the experiment.
            self._experiment = None
            self._stop_live()

    def _stop_live(self) -> None:
        self._cell = None
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()

    @property
    def _is_stuck(self) -> bool:
        file = self._console.file
        return isinstance(file, UnblockedStream) and file.is_stuck

    @property
    def _is_waiting(self) -> bool:
        return bool(self._waiting_for) and self._clock() - self._waiting_since >= WAITING_S

    def _redraw(self, experiment: Experiment, now: float, *, final: bool = False) -> None:
        self._shown_at = now
        if self._console.is_jupyter:
            self._draw_in_cell(experiment, now, final=final)
            return
        # rich would count a line printed within a frame as one of its rows.
        with self._undisturbed():
            self._draw_live(experiment, final=final)

    def _draw_live(self, experiment: Experiment, *, final: bool) -> None:
        if self._live is None:
            # The script's output to a terminal goes above the table.
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
            )
            self._live.start()
        elif (said := self._said()) != self._moved_for:
            self._moved_for = said
            self._move_below(said)
        # The terminal's echo of Ctrl-C must not wrap.
        self._picture_drawn = Constrain(
            self._picture(experiment, final=final), max(1, self._console.width - len(_ECHO))
        )
        self._live.update(self._picture_drawn, refresh=True)

    def _move_below(self, said: str) -> None:
        """Erase the table above the line *said*, so that it is drawn again below that line."""
        console, lines = self._console, self._console.render_lines(self._picture_drawn, pad=False)
        above, line = min(len(lines), console.height), math.ceil(len(said) / console.width)
        # Go up, delete the table, and go down past the line to the table's future last line.
        console.file.write(f"\x1b[{above + line}A\x1b[{above}M\x1b[{line}B\r" + "\n" * (above - 1))

    def _draw_in_cell(self, experiment: Experiment, now: float, *, final: bool) -> None:
        """Draw the table and the curve of the best value in a notebook's cell, over the last ones."""
        elapsed_s = now - self._began_at
        if experiment.best is not None:
            self._curve.add(elapsed_s, experiment.best.best_value)
        table = _html(self._picture(experiment, final=final))
        page = import_module("IPython.display").HTML(table + self._curve.svg(elapsed_s, self._elapsed()))
        if self._cell is None:
            self._cell = import_module("IPython.display").display(page, display_id=True)
        else:
            self._cell.update(page)

    def _picture(self, experiment: Experiment, *, final: bool) -> Group:
        head = f"{experiment.name} · {self._elapsed()} · {counted(experiment.reports, 'report')}"
        lines: list[Text | Table] = [
            Text(head, no_wrap=True, overflow="ellipsis"),
            Text(counts_text(experiment, self._total())),
        ]
        bar = None if final or self._console.height < _BAR_HEIGHT else self._bar(experiment)
        if bar is not None:
            lines.append(bar)
        if best := best_text(experiment):
            lines.append(Text(best, style="bold green", no_wrap=True, overflow="ellipsis"))
        if self._is_waiting:
            lines.append(Text(printable(self._waiting_for), style="yellow"))
        around = _LINES_AROUND + (bar is not None)
        room = max(1, min(ROWS_MOST, self._console.height - around))
        shown = ranked(experiment)[:room] if final else list(islice(self._by_activity(), room))
        if shown:
            lines += [Text(), trial_table(experiment, shown, width=self._console.width)]
        if len(experiment.trials) > len(shown):
            lines.append(Text(f"… and {len(experiment.trials) - len(shown)} more", style="dim"))
        return Group(*lines)

    def _bar(self, experiment: Experiment) -> Table | None:
        """Return a progress bar with the remaining time, or None if the number of trials is open."""
        total = self._total()
        if not total or total < len(experiment.trials):
            return None
        ended = _ended(experiment)
        recent = ended - self._ended_before
        left = ""
        if recent >= _ESTIMATED_FROM and ended < total:
            left = _time_left((self._clock() - self._began_at) * (total - ended) / recent)
        row = Table.grid(padding=(0, 1))
        row.add_row(ProgressBar(total, ended, width=min(_BAR_WIDTH, self._console.width)), Text(left, style="dim"))
        return row

    def _by_activity(self) -> Iterator[Trial]:
        """Yield running trials, then other unfinished ones, then ended ones from the last ended on."""
        for status in (TrialStatus.RUNNING, TrialStatus.QUEUED, TrialStatus.PAUSED, TrialStatus.CANDIDATE):
            yield from (trial for trial in self._open.values() if trial.status is status)
        yield from reversed(self._ended)

    def _write_lines(self, experiment: Experiment, now: float) -> None:
        if self._is_waiting and self._waiting_shown != self._waiting_for:
            # A text in which only numbers changed, such as waited seconds, is not printed each second.
            is_new = _NUMBERS.sub("", self._waiting_shown) != _NUMBERS.sub("", self._waiting_for)
            if is_new or now - self._waiting_shown_at >= LINE_S:
                self._waiting_shown, self._waiting_shown_at = self._waiting_for, now
                self._print_line(printable(self._waiting_for))
        if not self._waiting_for:
            self._waiting_shown = ""
        line = self._progress_text(experiment)
        if line != self._line and experiment.trials and now - self._shown_at >= LINE_S:
            self._line, self._shown_at = line, now
            self._print_line(self._summary(experiment))

    def _print_failures(self, experiment: Experiment) -> None:
        failed = [trial for trial in experiment.trials.values() if trial.status is TrialStatus.FAILED]
        if failed:
            first = f"first trial {failed[0].id}: {printable(failed[0].reason)}"
            where = f"; full errors in {self._folder / ERROR_FILE}" if self._folder is not None else ""
            count = f"every trial failed ({len(failed)})" if experiment.has_only_failed else f"{len(failed)} failed"
            self._print_line(f"{count}, {first}{where}")

    def _progress_text(self, experiment: Experiment) -> str:
        return f"{counts_text(experiment, self._total())} · {counted(experiment.reports, 'report')}"

    def _elapsed(self) -> str:
        return duration(self._clock() - self._began_at)

    def _summary(self, experiment: Experiment) -> str:
        parts = [experiment.name, self._progress_text(experiment), self._elapsed(), best_text(experiment)]
        return " · ".join(filter(None, parts))

    def _print_line(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)
        self._console.file.flush()


def _console() -> Console:
    """Return a console on standard error, or on standard output if only that is a terminal."""
    to_stdout = sys.stdout.isatty() and not sys.stderr.isatty()
    stream = sys.stdout if to_stdout else sys.stderr
    replace_unencodable(stream)
    # Environment variables that force colours would draw the live table into a file.
    is_standard = stream is sys.__stdout__ or stream is sys.__stderr__
    file = cast("IO[str]", UnblockedStream(stream)) if is_standard else None
    return ProgressConsole(file=file, stderr=not to_stdout, force_terminal=None if stream.isatty() else False)
