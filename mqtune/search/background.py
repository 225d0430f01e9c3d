"""A searcher that works in a thread of its own."""

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
    """Has another searcher work in a thread, so that the driver's loop never waits for it.

    The thread makes the driver's calls in their order. ``suggest`` has a config worked out, and returns ``WAIT`` until it is
    there. Where that takes long (``prefetch_s``), the next ones are worked out before a slot is free, for the trials that then come
    next: as many as slots have become free at the same time, and no more than trials run.
    Before the first suggestion, as in a replay, calls are made in the driver's thread: it has nothing else to do.

    A model that computes in Python shares the interpreter with the driver, which then waits for it for some milliseconds at each report.

    The searcher is told of a trial with the status and the metrics that it had when the driver called. After an error, which comes out of
    the driver's next call as UserCodeFailed, nothing is called any more.

    Args:
        searcher: bound already; nobody else may call it from now on.
    """

    def __init__(self, searcher: Searcher, timing: Timing = Timing()) -> None:
        self._timing = timing
        self.adaptive = searcher.adaptive
        self._searcher = searcher
        self._background = Background("mqtune-searcher")
        self._found: queue.SimpleQueue[Suggestion] = queue.SimpleQueue()
        #: How many configs are being worked out, or are there, and how many are to be, while none is wanted.
        self._ahead, self._wanted_ahead = 0, 1
        #: Whether a free slot has waited for the config that comes next.
        self._has_waited = False
        self._running: set[TrialId] = set()
        #: How long the last suggestion took, in seconds.
        self._took_s = 0.0

    def suggest(self, trial: TrialId) -> Suggestion:
        """Return the config that was worked out since it was asked for, or WAIT."""
        self._background.start()
        self._background.check()
        if not self._ahead:
            self._ask(trial)
        try:
            found = self._found.get_nowait()
        except queue.Empty:
            self._has_waited = True
            return WAIT
        self._ahead -= 1
        if found is not None and self._took_s > self._timing.prefetch_s:
            # This one is about to run, too.
            self._wanted_ahead = min(self._wanted_ahead + self._has_waited, len(self._running) + 1)
            while self._ahead < self._wanted_ahead:
                self._ask(TrialId(f"{int(trial) + 1 + self._ahead:04d}"))
        self._has_waited = False
        return found

    def replay(self, trial: TrialId, config: Config) -> Config | None:
        """Have the searcher replay."""
        return self._searcher.replay(trial, config)

    def adopt(self, trial: TrialId, config: Config) -> None:
        """Tell the searcher."""
        self._tell("adopt", trial, copy.deepcopy(config))

    def on_stage(self, trial: Trial) -> None:
        """Tell the searcher."""
        self._running.add(trial.id)
        self._tell("on_stage", trial)

    def on_report(self, trial: Trial, report: Report) -> None:
        """Tell the searcher."""
        self._tell("on_report", trial, report)

    def on_trial_pause(self, trial: Trial) -> None:
        """Tell the searcher."""
        self._running.discard(trial.id)
        self._tell("on_trial_pause", trial)

    def on_attempt_end(self, trial: Trial) -> None:
        """Tell the searcher."""
        self._tell("on_attempt_end", trial)

    def on_abandon(self, trial: Trial) -> None:
        """Tell the searcher."""
        self._tell("on_abandon", trial)

    def on_trial_end(self, trial: Trial) -> None:
        """Tell the searcher."""
        self._running.discard(trial.id)
        self._tell("on_trial_end", trial)

    def close(self) -> None:
        """End the thread after the call that it is in; what waits behind that is not done any more."""
        self._background.close()

    def _ask(self, trial: TrialId) -> None:
        self._ahead += 1
        self._background.tell(partial(self._make, "suggest", trial, partial(self._suggest, trial)))

    def _suggest(self, trial: TrialId) -> None:
        begin = time.monotonic()
        found = self._searcher.suggest(trial)
        self._took_s = time.monotonic() - begin
        self._found.put(found)

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
