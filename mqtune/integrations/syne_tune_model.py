"""Runs the searcher of a Syne Tune scheduler in a thread."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from mqtune.extend import BackgroundDecisions

#: If a suggestion takes longer, in seconds, the next one is computed in advance.
_SLOW_S: Final = 0.1
#: The name of the suggesting method up to Syne Tune 0.13, and since.
_SUGGEST: Final = ("get_config", "suggest")
#: The methods of a searcher that return nothing.
_TOLD: Final = (
    "register_pending",
    "cleanup_pending",
    "remove_case",
    "evaluation_failed",
    "on_trial_result",
    "on_trial_complete",
    "on_trial_error",
)
#: The attributes of a searcher that may be read at any time, as no model changes them.
_FIXED: Final = ("debug_log", "config_space")
#: The searchers that need no thread, as they are quick.
_QUICK: Final = ("RandomSearcher", "GridSearcher", "MultiObjectiveRandomSearcher")


Flat = dict[str, object]


class _Suggests(Protocol):
    """A scheduler of Syne Tune, or a copy of one."""

    def suggest(self, *number: int) -> object:
        """Return the next suggestion."""


class _ConfigWanted(Exception):
    """A scheduler's copy has asked for a config."""


class _OtherAnswerWanted(Exception):
    """A scheduler's copy needs something else of its searcher."""


class SlowSearcher:
    """Runs a scheduler's searcher in a thread, so that neither scheduler nor driver waits.

    Only the driver calls the scheduler, whose calls to the searcher are queued for the thread in order. Before each
    suggestion, a copy of the scheduler is asked first, with a probe in place of the searcher. If the copy wants a
    config from the probe, the searcher computes one in the thread. Only then the scheduler itself is asked. So it
    passes through the same states as in a replay. Until the first config is wanted, all calls are made in the driver's
    thread.

    Args:
        scheduler: the scheduler, initialised by its first suggestion.
        searcher: its searcher. From now on only this object and the scheduler may use it.
        suggest: the searcher's suggesting method.
    """

    def __init__(self, scheduler: _Suggests, searcher: object, suggest: Callable[..., Flat | None]) -> None:
        #: Makes the calls to the searcher, and raises its errors.
        self.background = BackgroundDecisions(dict, rests=False)
        #: Whether a config is being computed or waits to be used.
        self.is_asked = False
        self._scheduler = scheduler
        self._searcher = searcher
        self._suggest = suggest
        self._configs: deque[Flat | None] = deque()
        self._took_s = 0.0
        self._is_live = False
        self._thread = 0
        for name in _TOLD:
            if hasattr(searcher, name):
                setattr(searcher, name, self._in_thread(getattr(searcher, name)))

    @property
    def is_computing(self) -> bool:
        return self.is_asked and not self._configs

    @property
    def has_answer(self) -> bool:
        return bool(self._configs) or not self._is_live

    @property
    def is_worth_prefetching(self) -> bool:
        """Whether to compute the next config before a slot is free."""
        return self._is_live and self._took_s > _SLOW_S

    def is_ready(self, *number: int) -> bool | None:
        """Return whether the scheduler can be asked now. If not, have its next config computed.

        Return None, and do nothing, if probing fails. *number* is the trial's, for Syne Tune up to 0.13.
        """
        if self._configs:
            return True
        probe = copy.deepcopy(self._scheduler, {id(self._searcher): _Probe(self._searcher)})
        try:
            probe.suggest(*number)
        except _ConfigWanted as asked:
            if not self.is_asked:
                self.is_asked = self._is_live = True
                self.background.tell(partial(self._compute, *asked.args))
            return False
        except _OtherAnswerWanted:
            return None
        return True

    def answer(self, *arguments: object, **options: object) -> Flat | None:
        """Return the computed config. Before the thread is used, compute one now."""
        if not self._is_live:
            return self._suggest(*arguments, **options)
        self.is_asked = False
        return self._configs.popleft()

    def _compute(self, arguments: tuple[object, ...], options: Flat) -> None:
        self._thread = threading.get_ident()
        begin = time.monotonic()
        suggestion = self._suggest(*arguments, **options)
        self._took_s = time.monotonic() - begin
        self._configs.append(suggestion)

    def _in_thread(self, method: Callable[..., object]) -> Callable[..., None]:
        def told(*arguments: object, **options: object) -> None:
            if not self._is_live or threading.get_ident() == self._thread:
                method(*arguments, **options)
                return
            # The scheduler may change them before the thread reads them.
            arguments, options = copy.deepcopy((arguments, options))
            self.background.tell(partial(method, *arguments, **options))

        return told


class _Probe:
    """Stands in for the searcher in a copy of a scheduler, and raises if an answer is needed."""

    def __init__(self, searcher: object) -> None:
        self._searcher = searcher

    def __getattr__(self, name: str) -> object:
        if name in _SUGGEST:
            return self._ask
        attribute = getattr(self._searcher, name)
        if name in _TOLD:
            return lambda *_, **__: None
        if name in _FIXED:
            return attribute
        raise _OtherAnswerWanted

    def _ask(self, *arguments: object, **options: object) -> None:
        raise _ConfigWanted(arguments, options)


def suggest_name(searcher: object) -> str:
    """Return the name of a searcher's suggesting method."""
    return next(name for name in _SUGGEST if hasattr(searcher, name))


def is_quick(searcher: object) -> bool:
    """Return whether a searcher only draws configs, which is faster than using a thread."""
    return type(searcher).__name__ in _QUICK
