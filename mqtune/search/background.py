"""Runs a slow searcher in a thread."""

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

    The thread makes the driver's calls in order. ``suggest`` requests a config, and returns ``WAIT`` until the config
    is there. If a suggestion takes longer than ``Timing.prefetch_s``, further configs are requested in advance: one for
    each slot that became free at the same time, and at most one for each running trial. Before the first suggestion,
    for example in a replay, calls run in the driver's thread.

    A model in pure Python may delay the driver by some milliseconds at each report, because both share the interpreter.

    The searcher gets each trial as it was at the driver's call. If a call fails, the driver's next call raises
    UserCodeFailed, and the thread makes no further calls.

    Args:
        searcher: the slow searcher. ``bind`` must have been called, and nothing else may call it from now on.
        timing: has ``prefetch_s``.
    """

    def __init__(self, searcher: Searcher, timing: Timing = Timing()) -> None:
        self._timing = timing
        self.adaptive = searcher.adaptive
        self._searcher = searcher
        self._background = Background("mqtune-searcher")
        self._ready: queue.SimpleQueue[Suggestion] = queue.SimpleQueue()
        #: Number of configs that are requested or ready.
        self._prefetched = 0
        #: Number of configs to request in advance.
        self._prefetch_count = 1
        #: Whether a slot has waited since the last config was returned.
        self._has_waited = False
        self._running: set[TrialId] = set()
        #: Duration of the last suggestion, in seconds.
        self._took_s = 0.0

    def suggest(self, trial: TrialId) -> Suggestion:
        """Return the requested config, or WAIT if it is not ready. The first call requests it."""
        self._background.start()
        self._background.check()
        if not self._prefetched:
            self._request(trial)
        try:
            suggestion = self._ready.get_nowait()
        except queue.Empty:
            self._has_waited = True
            return WAIT
        self._prefetched -= 1
        if suggestion is not None and self._took_s > self._timing.prefetch_s:
            # Add 1 for the trial of the returned config, which is about to run.
            self._prefetch_count = min(self._prefetch_count + self._has_waited, len(self._running) + 1)
            while self._prefetched < self._prefetch_count:
                self._request(TrialId(f"{int(trial) + 1 + self._prefetched:04d}"))
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

    def _request(self, trial: TrialId) -> None:
        self._prefetched += 1
        self._background.tell(partial(self._call, "suggest", trial, partial(self._suggest, trial)))

    def _suggest(self, trial: TrialId) -> None:
        begin = time.monotonic()
        suggestion = self._searcher.suggest(trial)
        self._took_s = time.monotonic() - begin
        self._ready.put(suggestion)

    def _tell(self, method: str, trial: Trial | TrialId, *more: object) -> None:
        self._background.check()
        call = getattr(self._searcher, method)
        if self._background.is_live:
            id_ = trial.id if isinstance(trial, Trial) else trial
            self._background.tell(partial(self._call, method, id_, partial(call, copy.copy(trial), *more)))
        else:
            call(trial, *more)

    def _call(self, method: str, trial: TrialId, call: Callable[[], object]) -> None:
        try:
            call()
        except MqtuneError:
            raise
        except Exception as error:
            raise UserCodeFailed.by(self._searcher, method, f"trial {trial}", error) from error
