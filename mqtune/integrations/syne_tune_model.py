"""The searcher within a scheduler of Syne Tune, in a thread of its own while the scheduler goes on deciding."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from mqtune.extend import BackgroundDecisions

#: A suggestion that takes longer, in seconds, is made before a slot is free: a slot would wait for it.
_SLOW_S: Final = 0.1
#: The methods by which a scheduler has its searcher suggest, up to 0.13 and since.
_SUGGEST: Final = ("get_config", "suggest")
#: What a scheduler tells its searcher, without an answer.
_TOLD: Final = (
    "register_pending",
    "cleanup_pending",
    "remove_case",
    "evaluation_failed",
    "on_trial_result",
    "on_trial_complete",
    "on_trial_error",
)
#: What a scheduler reads of its searcher, and which no model changes.
_FIXED: Final = ("debug_log", "config_space")
#: Searchers that draw from a space or walk through it, in less time than a thread needs.
_QUICK: Final = ("RandomSearcher", "GridSearcher", "MultiObjectiveRandomSearcher")


#: A config as Syne Tune has it.
Flat = dict[str, object]


class _Suggests(Protocol):
    """A scheduler of Syne Tune, or a copy of one."""

    def suggest(self, *number: int) -> object:
        """Return what is to be done next."""


class _Asked(Exception):
    """A copy of the scheduler has asked for a config."""


class _Answers(Exception):
    """A copy of the scheduler goes by something else of its searcher's."""


class SlowSearcher:
    """Has a scheduler's searcher work in a thread, so that neither the scheduler nor the driver waits for it.

    The scheduler is called by the driver alone, and what it tells its searcher waits for the thread, in its order. Before the
    scheduler is asked for a suggestion, a copy of it is, which has all but the searcher of its own: if that wants a config, the
    searcher works one out, and the scheduler is asked when that is there. So it comes from state to state as it does in a replay,
    where the config is known.

    Until the first config is wanted, as in a replay, all calls are made in the driver's thread.

    Args:
        scheduler: the scheduler, initialised with its first suggestion.
        searcher: what it asks for configs; from now on only through this object, and the scheduler.
        suggest: the method by which the searcher suggests.
    """

    def __init__(self, scheduler: _Suggests, searcher: object, suggest: Callable[..., Flat | None]) -> None:
        #: Makes the searcher's calls, and raises its errors.
        self.background = BackgroundDecisions(dict, rests=False)
        #: Whether a config is being worked out, or was and is not taken.
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
        """Whether a config is being worked out."""
        return self.is_asked and not self._found

    @property
    def has_answer(self) -> bool:
        """Whether ``answer`` may be called."""
        return bool(self._found) or not self._is_live

    @property
    def is_worth_prefetching(self) -> bool:
        """Whether the next config should be worked out before a slot is free."""
        return self._is_live and self._took_s > _SLOW_S

    def is_ready(self, *number: int) -> bool | None:
        """Whether the scheduler can be asked, with this number up to 0.13; if not, the config that it wants is worked out.

        None if that can't be known of this scheduler; nothing was done.
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
        """Return the config that was worked out, or at first one that is worked out now."""
        if not self._is_live:
            return self._suggest(*arguments, **options)
        self.is_asked = False
        return self._found.popleft()

    def _ponder(self, arguments: tuple[object, ...], options: Flat) -> None:
        self._thread = threading.get_ident()
        begin = time.monotonic()
        found = self._suggest(*arguments, **options)
        self._took_s = time.monotonic() - begin
        self._found.append(found)

    def _later(self, method: Callable[..., object]) -> Callable[..., None]:
        def told(*arguments: object, **options: object) -> None:
            if not self._is_live or threading.get_ident() == self._thread:
                method(*arguments, **options)
                return
            # The scheduler goes on to use them.
            arguments, options = copy.deepcopy((arguments, options))
            self.background.tell(partial(method, *arguments, **options))

        return told


class _Probe:
    """Stands for a searcher in a copy of its scheduler: hears nothing, and says what it is asked."""

    def __init__(self, searcher: object) -> None:
        self._searcher = searcher

    def __getattr__(self, name: str) -> object:
        if name in _SUGGEST:
            return self._ask
        found = getattr(self._searcher, name)
        if name in _TOLD:
            return lambda *_, **__: None
        if name in _FIXED:
            return found
        raise _Answers

    def _ask(self, *arguments: object, **options: object) -> None:
        raise _Asked(arguments, options)


def suggest_name(searcher: object) -> str:
    """Return the name of the method by which a searcher suggests."""
    return next(name for name in _SUGGEST if hasattr(searcher, name))


def is_quick(searcher: object) -> bool:
    """Whether a searcher only draws configs."""
    return type(searcher).__name__ in _QUICK
