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

#: Slower suggestions, in seconds, are prefetched.
_SLOW_S: Final = 0.1
#: Suggesting methods up to 0.13, and since.
_SUGGEST: Final = ("get_config", "suggest")
#: Calls to a searcher that have no answer.
_TOLD: Final = (
    "register_pending",
    "cleanup_pending",
    "remove_case",
    "evaluation_failed",
    "on_trial_result",
    "on_trial_complete",
    "on_trial_error",
)
#: Readable attributes, which no model changes.
_FIXED: Final = ("debug_log", "config_space")
#: Searchers that are faster than a thread.
_QUICK: Final = ("RandomSearcher", "GridSearcher", "MultiObjectiveRandomSearcher")


Flat = dict[str, object]


class _Suggests(Protocol):
    """A scheduler of Syne Tune, or a copy."""

    def suggest(self, *number: int) -> object:
        """Return the next suggestion."""


class _Asked(Exception):
    """A scheduler's copy has asked for a config."""


class _Answers(Exception):
    """A scheduler's copy needs something else of its searcher."""


class SlowSearcher:
    """Runs a scheduler's searcher in a thread, so that neither scheduler nor driver waits.

    Only the driver calls the scheduler, whose calls to the searcher are queued for the thread in order. Before each
    suggestion, a copy of the scheduler with a probe as its searcher is asked. If it wants a config, the searcher
    computes one, and then the scheduler itself is asked. It thus passes through the same states as in a replay. Until
    the first config is wanted, all calls are made in the driver's thread.

    Args:
        scheduler: the scheduler, initialised with its first suggestion.
        searcher: its searcher, from now on used only by this object and the scheduler.
        suggest: the searcher's suggesting method.
    """

    def __init__(self, scheduler: _Suggests, searcher: object, suggest: Callable[..., Flat | None]) -> None:
        #: Makes the searcher's calls, and raises its errors.
        self.background = BackgroundDecisions(dict, rests=False)
        #: Whether a config is being computed or waits to be used.
        self.is_asked = False
        self._scheduler = scheduler
        self._searcher = searcher
        self._suggest = suggest
        self._found: deque[Flat | None] = deque()
        self._took_s = 0.0
        self._is_live = False
        self._thread = 0
        for name in _TOLD:
            if hasattr(searcher, name):
                setattr(searcher, name, self._later(getattr(searcher, name)))

    @property
    def is_pondering(self) -> bool:
        return self.is_asked and not self._found

    @property
    def has_answer(self) -> bool:
        return bool(self._found) or not self._is_live

    @property
    def is_worth_prefetching(self) -> bool:
        """Whether to compute the next config before a slot is free."""
        return self._is_live and self._took_s > _SLOW_S

    def is_ready(self, *number: int) -> bool | None:
        """Return whether the scheduler can be asked. If not, its config is computed.

        *number* is the trial's, up to 0.13. The result is None, without any effect, if probing fails.
        """
        if self._found:
            return True
        probe = copy.deepcopy(self._scheduler, {id(self._searcher): _Probe(self._searcher)})
        try:
            probe.suggest(*number)
        except _Asked as asked:
            if not self.is_asked:
                self.is_asked = self._is_live = True
                self.background.tell(partial(self._ponder, *asked.args))
            return False
        except _Answers:
            return None
        return True

    def answer(self, *arguments: object, **options: object) -> Flat | None:
        """Return the computed config, or at first one computed now."""
        if not self._is_live:
            return self._suggest(*arguments, **options)
        self.is_asked = False
        return self._found.popleft()

    def _ponder(self, arguments: tuple[object, ...], options: Flat) -> None:
        self._thread = threading.get_ident()
        begin = time.monotonic()
        suggestion = self._suggest(*arguments, **options)
        self._took_s = time.monotonic() - begin
        self._found.append(suggestion)

    def _later(self, method: Callable[..., object]) -> Callable[..., None]:
        def told(*arguments: object, **options: object) -> None:
            if not self._is_live or threading.get_ident() == self._thread:
                method(*arguments, **options)
                return
            # The scheduler continues to use them.
            arguments, options = copy.deepcopy((arguments, options))
            self.background.tell(partial(method, *arguments, **options))

        return told


class _Probe:
    """Replaces a searcher in a scheduler's copy, and intercepts requests."""

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
        raise _Answers

    def _ask(self, *arguments: object, **options: object) -> None:
        raise _Asked(arguments, options)


def suggest_name(searcher: object) -> str:
    """Return the name of a searcher's suggesting method."""
    return next(name for name in _SUGGEST if hasattr(searcher, name))


def is_quick(searcher: object) -> bool:
    """Return whether a searcher only draws configs."""
    return type(searcher).__name__ in _QUICK
