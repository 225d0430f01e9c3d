"""A tuner that ends the run if the first completed trial has not reported the metric."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from mqtune.cli.tune.plan import valid_group
from mqtune.core.errors import MetricMissing
from mqtune.core.text import names_in_words
from mqtune.core.trial import AttemptEnd, Trial
from mqtune.driver.driver import STEP_S
from mqtune.tuner import Tuner

#: The most lines of a trial's output in the error for a missing metric, and the most characters of each.
_SHOWN_LINES: Final = 5
_SHOWN_CHARS: Final = 200


class CommandTuner(Tuner):
    """Tunes a program from a command line.

    If no trial has reported when the first one completes, the run ends, as the other trials would not report either.

    Args:
        metrics: the names of the optimised metrics.
        arguments: the arguments of ``Tuner``.
    """

    def __init__(self, metrics: Sequence[str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._metrics = metrics
        #: Whether this run has taken a step. If the experiment is finished, it takes none.
        self.has_stepped = False

    def step(self, block_s: float = STEP_S) -> None:
        """Take a step as ``Tuner.step`` does.

        Raises:
            MetricMissing: a trial has completed, and no trial has reported.
            MqtuneError: as ``Tuner.step``.
        """
        if not self.has_stepped:
            # Skip failures of an earlier run, which the user has seen.
            self._newly_failed()
            self.has_stepped = True
        super().step(block_s)
        for trial in self._newly_failed():
            if trial.attempt.end is AttemptEnd.COMPLETED and not any(other.reports for other in self.get_trials()):
                raise MetricMissing(_why_missing(trial, self._metrics[0], self.name))

    def _newly_failed(self) -> list[Trial]:
        return list(iter(self.next_failed_trial, None))


def _why_missing(trial: Trial, metric: str, experiment: str) -> str:
    """Return the error about a trial without reports, with the end of its output and a remedy."""
    attempt = trial.attempt
    lines = [line for text in (attempt.stderr_tail, attempt.stdout_tail) for line in text.splitlines() if line.strip()]
    shown = "".join(f"\n  {line[:_SHOWN_CHARS]}" for line in lines[-_SHOWN_LINES:])
    printed = f"; its last lines:{shown}\n" if shown else ", as it printed nothing. "
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
