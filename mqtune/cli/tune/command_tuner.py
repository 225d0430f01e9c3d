"""A tuner that ends the run if the program fails at its start, or does not report the metric."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from mqtune.cli.tune.plan import valid_group
from mqtune.core.errors import MetricMissing, TrialFailed
from mqtune.core.text import names_in_words
from mqtune.core.trial import AttemptEnd, Trial, TrialId, TrialStatus
from mqtune.driver.driver import STEP_S
from mqtune.tuner import Tuner

#: If this many trials of a run, the first ones, have all failed before any report, the run ends.
_FIRST: Final = 3
#: The most lines of a trial's output in the error for a missing metric, and the most characters of each.
_SHOWN_LINES: Final = 5
_SHOWN_CHARS: Final = 200


class CommandTuner(Tuner):
    """Tunes a program from a command line.

    If no trial has reported when the first one completes, the run ends, as the other trials would not report either. It
    also ends if its first three trials have failed, and no trial has reported.

    Args:
        metrics: the names of the optimised metrics.
        arguments: the arguments of ``Tuner``.
    """

    def __init__(self, metrics: Sequence[str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._metrics = metrics
        #: Whether this run has taken a step. If the experiment is finished, it takes none.
        self.has_stepped = False
        #: The trials that had ended before this run.
        self._ended_before: set[TrialId] = set()

    def step(self, block_s: float = STEP_S) -> None:
        """Take a step as ``Tuner.step`` does.

        Raises:
            MetricMissing: a trial has completed, and no trial has reported.
            TrialFailed: the first trials of this run have failed, and no trial has reported.
            MqtuneError: as ``Tuner.step``.
        """
        if not self.has_stepped:
            # Skip failures of an earlier run, which the user has seen.
            self._newly_failed()
            self._ended_before = {trial.id for trial in self.get_trials() if trial.status.is_terminal}
            self.has_stepped = True
        super().step(block_s)
        failed = self._newly_failed()
        if not failed or any(trial.reports for trial in self.get_trials()):
            return
        for trial in failed:
            if trial.attempt.end is AttemptEnd.COMPLETED:
                raise MetricMissing(_why_missing(trial, self._metrics[0], self.name))
        of_this_run = (trial for trial in self.get_trials() if trial.id not in self._ended_before)
        first = list(islice(of_this_run, _FIRST))
        if len(first) == _FIRST and all(_has_crashed(trial) for trial in first):
            raise TrialFailed(_why_failed(first[-1], self.name))

    def _newly_failed(self) -> list[Trial]:
        return list(iter(self.next_failed_trial, None))


def _has_crashed(trial: Trial) -> bool:
    return trial.status is TrialStatus.FAILED and trial.attempt.end is AttemptEnd.FAILED


def _why_failed(trial: Trial, experiment: str) -> str:
    """Return the error about the first trials, with the end of the last one's output and a remedy."""
    lines = _printed_lines(trial)
    printed = f"the last lines of trial {trial.id}:{_shown(lines)}\n" if lines else f"{trial.reason}. "
    return (
        f"the first {_FIRST} trials have failed, and no trial has reported; {printed}Correct the program or its "
        "arguments. The same command continues with other trials. "
        f"All of the output: mqtune logs {experiment} {trial.id}"
    )


def _printed_lines(trial: Trial) -> list[str]:
    """Return the end of a trial's output without empty lines. The standard error comes first."""
    texts = (trial.attempt.stderr_tail, trial.attempt.stdout_tail)
    return [line for text in texts for line in text.splitlines() if line.strip()]


def _shown(lines: Sequence[str]) -> str:
    return "".join(f"\n  {line[:_SHOWN_CHARS]}" for line in lines[-_SHOWN_LINES:])


def _why_missing(trial: Trial, metric: str, experiment: str) -> str:
    """Return the error about a trial without reports, with the end of its output and a remedy."""
    lines = _printed_lines(trial)
    printed = f"; its last lines:{_shown(lines)}\n" if lines else ", as it printed nothing. "
    keys = next(filter(None, map(_keys_of_object, reversed(lines))), [])
    name = valid_group(metric)
    way_out = (
        f"Its JSON lines have {names_in_words(keys)}: give one of them to --minimize or --maximize"
        if keys
        else f"Give a --pattern that finds it, such as '{name}[ =:]+(?P<{name}>\\S+)', or have the program print JSON "
        f'lines such as {{"{metric}": 0.1}}'
    )
    return (
        f"trial {trial.id} has ended without the metric {metric!r}{printed}{way_out}. "
        f"All of the output: mqtune logs {experiment} {trial.id}"
    )


def _keys_of_object(line: str) -> list[str]:
    """Return the keys of a line that is a JSON object, or [] for other lines."""
    try:
        decoded = json.loads(line) if line.lstrip().startswith("{") else {}
    except (ValueError, RecursionError):
        return []
    return list(decoded)
