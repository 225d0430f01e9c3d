"""How an experiment and its trials look in a terminal of any width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from rich.table import Table
from rich.text import Text

from mqtune.core.experiment import Experiment
from mqtune.core.status import TrialStatus
from mqtune.core.text import printable
from mqtune.core.trial import Trial

__all__ = ["best_text", "counts_text", "entries", "printable", "ranked", "short_config", "short_value", "trial_table"]

#: What is shown of one value, and of how many entries of a config: more than fits into a line of a wide terminal.
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
    """Return a value in a few characters: numbers with four digits, and the beginning of anything long."""
    if isinstance(value, float):
        return f"{value:.4g}"
    # A list of a million numbers must not be written out only to be cut.
    shown = value if isinstance(value, list | str | bytes) and len(value) > _VALUE_CHARS else None
    text = str(value if shown is None else shown[:_VALUE_CHARS]).replace("\n", " ")
    return printable(text if len(text) <= _VALUE_CHARS and shown is None else text[: _VALUE_CHARS - 1] + "…")


def short_config(config: Mapping[str, Any]) -> str:
    """Return a config on one line, as ``lr=0.01 layers.width=64``; of a large one, the beginning."""
    items = entries(config)
    parts = [f"{printable(name)}={short_value(value)}" for name, value in islice(items, _CONFIG_ENTRIES)]
    return " ".join(parts) + (" …" if next(items, None) is not None else "")


def entries(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a nested dict under names such as ``layers.width``."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from entries(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def counts_text(experiment: Experiment, total: int | None = None) -> str:
    """Return how many trials there are of each status."""
    counts = [f"{count} {status.value.replace('_', ' ')}" for status, count in experiment.counts.items() if count]
    # A person may add trials to those that were planned.
    planned = "" if total is None or total < len(experiment.trials) else f"/{total}"
    number = f"{len(experiment.trials)}{planned}"
    return f"{number} trials" + (f": {', '.join(counts)}" if counts else "")


def best_text(experiment: Experiment) -> str:
    """Return the best value so far, its trial and its config on one line, or an empty text."""
    best = experiment.best
    if best is None:
        return ""
    failed = " (which has failed)" if best.status is TrialStatus.FAILED else ""
    value = f"best {experiment.metric}={short_value(best.best_value)}"
    return f"{value} in trial {best.id}{failed}: {short_config(best.config)}"


def ranked(experiment: Experiment) -> list[Trial]:
    """Return all trials, that with the best value first and those last that have none, or were abandoned."""
    sign = 1 if experiment.mode == "min" else -1
    return sorted(
        experiment.trials.values(),
        key=lambda t: math.inf if math.isnan(t.best_value) or t.is_abandoned else sign * t.best_value,
    )


class _Column(NamedTuple):
    head: str
    cell: Callable[[Experiment, Trial], str]
    justify: Literal["left", "right"] = "left"
    #: The narrowest terminal that has room for it.
    from_width: int = 0
    max_width: int | None = None


def _iteration(_: Experiment, trial: Trial) -> str:
    return str(trial.last_metrics.get("training_iteration", trial.attempt.reports if trial.attempts else 0))


def _last(experiment: Experiment, trial: Trial) -> str:
    return short_value(trial.last_metrics[experiment.metric]) if experiment.metric in trial.last_metrics else ""


_COLUMNS: Final = (
    _Column("trial", lambda _, trial: trial.id),
    _Column("status", lambda _, trial: trial.status.value.replace("_", " ")),
    _Column("iteration", _iteration, "right"),
    _Column("last", _last, "right", max_width=12),
    _Column("best", lambda _, trial: short_value(trial.best_value) if trial.has_metric else "", "right", max_width=12),
    _Column("worker", lambda _, trial: printable(trial.attempts[-1].worker) if trial.attempts else "", "left", 90, 24),
    _Column("tags", lambda _, trial: printable(", ".join(trial.labels.tags)), "left", 60, 24),
    _Column("config", lambda _, trial: short_config(trial.config), "left", 60),
)


def trial_table(experiment: Experiment, trials: Iterable[Trial], *, width: int) -> Table:
    """Return a table for a terminal of *width* columns with a row for each of *trials*."""
    trials = list(trials)
    has_tags = any(trial.labels.tags for trial in trials)
    columns = [each for each in _COLUMNS if width >= each.from_width and (has_tags or each.head != "tags")]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        # Where room is short, rich takes it first from a column that may be wrapped; its cells are cut all the same.
        may_shrink = column.head == "config"
        table.add_column(
            column.head, justify=column.justify, no_wrap=not may_shrink, max_width=column.max_width, header_style="bold"
        )
    for trial in trials:
        table.add_row(*(_cell(column, experiment, trial) for column in columns))
    return table


def _cell(column: _Column, experiment: Experiment, trial: Trial) -> Text:
    style = _STYLES.get(trial.status, "") if column.head == "status" else ""
    # Text, because a config may hold what rich would take for markup in a string.
    return Text(column.cell(experiment, trial), style, no_wrap=True, overflow="ellipsis")
