"""A searcher that runs in a thread of its own."""

from __future__ import annotations

import copy
import queue
import time
from collections.abc import Callable
from functools import partial

from mqtune.core.background import Background
from mqtune.core.errors import MqtuneError, UserCodeFailed
from mqtune.core.timing import Timing
from mqtune.core.trial import Config, Report, Trial, TrialId
from mqtune.search.base import WAIT, Searcher, Suggestion


class BackgroundSearcher(Searcher):
    """Runs another searcher in a thread, so that the driver's loop never waits for it.

    The thread makes the driver's calls in order. ``suggest`` requests a config and returns ``WAIT`` until it is ready.
    If that takes longer than ``prefetch_s``, the next configs are prefetched: one for each slot that became free at the
    same time, and at most one for each running trial. Before the first suggestion, as in a replay, calls run in the
    driver's thread.

    A pure-Python model may delay the driver by some milliseconds at each report, as they share the interpreter.

    The searcher receives each trial as it was when the driver called. If a call fails, the driver's next call raises
    UserCodeFailed, and no further calls are made.

    Args:
        searcher: bound already, and called by nothing else.
    """

    def __init__(self, searcher: Searcher, timing: Timing = Timing()) -> None:
        self._timing = timing
        self.adaptive = searcher.adaptive
        self._searcher = searcher
        self._background = Background("mqtune-searcher")
        self._found: queue.SimpleQueue[Suggestion] = queue.SimpleQueue()
        #: Requested or ready configs, and configs to prefetch while no slot is free.
        self._ahead, self._wanted_ahead = 0, 1
        self._has_waited = False
        self._running: set[TrialId] = set()
        #: In seconds.
        self._took_s = 0.0

    def suggest(self, trial: TrialId) -> Suggestion:
        """Return the requested config, or WAIT if it is not ready."""
        self._background.start()
        self._background.check()
        if not self._ahead:
            self._ask(trial)
        try:
            suggestion = self._found.get_nowait()
        except queue.Empty:
            self._has_waited = True
            return WAIT
        self._ahead -= 1
        if suggestion is not None and self._took_s > self._timing.prefetch_s:
            # The returned config is about to run, too.
            self._wanted_ahead = min(self._wanted_ahead + self._has_waited, len(self._running) + 1)
            while self._ahead < self._wanted_ahead:
                self._ask(TrialId(f"{int(trial) + 1 + self._ahead:04d}"))
        self._has_waited = False
        return suggestion

    def replay(self, trial: TrialId, config: Config) -> Config | None:
        return self._searcher.replay(trial, config)

    def adopt(self, trial: TrialId, config: Config) -> None:
        self._tell("adopt", trial, copy.deepcopy(config))

    def on_queue(self, trial: Trial) -> None:
        self._running.add(trial.id)
        self._tell("on_queue", trial)

    def on_report(self, trial: Trial, report: Report) -> None:
        self._tell("on_report", trial, report)

    def on_trial_pause(self, trial: Trial) -> None:
        self._running.discard(trial.id)
        self._tell("on_trial_pause", trial)

    def on_attempt_end(self, trial: Trial) -> None:
        self._tell("on_attempt_end", trial)

    def on_abandon(self, trial: Trial) -> None:
        self._tell("on_abandon", trial)

    def on_trial_end(self, trial: Trial) -> None:
        self._running.discard(trial.id)
        self._tell("on_trial_end", trial)

    def close(self) -> None:
        """End the thread after its current call. Queued calls are dropped."""
        self._background.close()

    def _ask(self, trial: TrialId) -> None:
        self._ahead += 1
        self._background.tell(partial(self._make, "suggest", trial, partial(self._suggest, trial)))

    def _suggest(self, trial: TrialId) -> None:
        begin = time.monotonic()
        suggestion = self._searcher.suggest(trial)
        self._took_s = time.monotonic() - begin
        self._found.put(suggestion)

    def _tell(self, method: str, trial: Trial | TrialId, *more: object) -> None:
        self._background.check()
        told = getattr(self._searcher, method)
        if self._background.is_live:
            id_ = trial.id if isinstance(trial, Trial) else trial
            self._background.tell(partial(self._make, method, id_, partial(told, copy.copy(trial), *more)))
        else:
            told(trial, *more)

    def _make(self, method: str, trial: TrialId, call: Callable[[], object]) -> None:
        try:
            call()
        except MqtuneError:
            raise
        except Exception as error:
            raise UserCodeFailed.by(self._searcher, method, f"trial {trial}", error) from error
