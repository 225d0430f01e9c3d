"""Retries a call while its server is missing or full, or refuses the login."""

from __future__ import annotations

import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeVar

from redis import Redis
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,  # noqa: A004
)

from mqtune.core.errors import AccessDenied, BrokerFull, BrokerRefused, BrokerUnavailable
from mqtune.core.timing import Timing
from mqtune.journal.server.room import FULL, MAKE_ROOM

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: The longest pause between two tries, in seconds.
RETRY_MAX_S: Final = 1.0
#: Randomises the pauses, so that a thousand workers don't reconnect at the same moment. It is a generator of its own,
#: because users seed the global one.
_spread: Final = random.Random()
#: Temporary errors: the server is missing, loading, demoted, or full.
_TEMPORARY: Final[tuple[type[BaseException], ...]] = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
)
#: The codes of temporary errors in a text. redis-py has no class for some, and a server (6.2) wraps those that a script
#: has caused. They are: the disk is full, replicas or the master are missing, or a long script runs.
_TEMPORARY_CODES: Final = re.compile(r"(?:^|-)(?:MISCONF|NOREPLICAS|MASTERDOWN|BUSY|UNBLOCKED|OOM|READONLY) ")
#: Errors of missing permissions, which are not retried. Celery and scripts wrap the server's text. A script of Redis
#: 7.0 says only "The user executing the script can't run this command".
_DENIED: Final = re.compile(r"NOPERM|ACL failure|no permissions? |the user executing the script can't ", re.IGNORECASE)
#: A part of the error text of a server without free memory. A server (6.2) wraps it if a script has caused it.
_FULL_TEXT: Final = "used memory > 'maxmemory'"
#: The beginning of a pipeline's error, where redis-py puts the whole command. The group is its name and its key.
_PIPELINED: Final = re.compile(r"Command # \d+ \((\S+(?: \S+)?).*?\) of pipeline caused error: ", re.DOTALL)
_LOG_IN_AGAIN: Final = "was its password changed? Start this again with the new one in the broker URL"


class _Problem(Enum):
    """Why a call is retried. The value says, for the log, how the problem has ended."""

    NONE = ""
    MISSING = "is back"
    FULL = "has free memory again"
    #: The account's password was changed, or the account was deleted. redis-py has an error of the connection for it.
    REFUSED = "accepts the login"


def is_full(error: BaseException) -> bool:
    """Whether a server has refused a command because its memory is used up."""
    return _FULL_TEXT in str(error)


def is_about_server(text: str) -> bool:
    """Whether a script's error text is about the server, and not about an experiment's keys."""
    return bool(_TEMPORARY_CODES.search(text) or _DENIED.search(text) or _FULL_TEXT in text)


def retrying(
    call: Callable[[], T],
    *,
    patience_s: float,
    full_patience_s: float | None = None,
    refused_patience_s: float | None = None,
    closing: threading.Event | None = None,
    also: tuple[type[BaseException], ...] = (),
    on_return: Callable[[], None] = lambda: None,
    timing: Timing = Timing(),
) -> T:
    """Return the result of *call*.

    Retry it while the server is missing or full, or refuses the login. redis-py's own retry is not enough. It counts
    tries and not seconds, does not retry with a full server or a refused login, and can't be ended by another thread.

    Args:
        call: must be safe to repeat.
        patience_s: how long it is retried, in seconds.
        full_patience_s: the same while the server is full; by default *patience_s*.
        refused_patience_s: the same while the server refuses the login; by default *patience_s*.
        closing: once set, the call is not retried.
        also: further errors that mean that the server is missing.
        on_return: called when the call succeeds after a retry.

    Raises:
        BrokerFull: the server was full for too long.
        BrokerRefused: the server refused the login for too long.
        BrokerUnavailable: the server did not answer for too long, or *closing* was set meanwhile.
        AccessDenied: the account lacks the permission.
    """
    temporary = _TEMPORARY + also
    caught: tuple[type[BaseException], ...] = (*temporary, ResponseError)
    since: float | None = None
    problem = _Problem.NONE
    wait_s = timing.first_retry_s
    while True:
        try:
            result = call()
        except caught as error:
            if _DENIED.search(str(error)):
                raise AccessDenied(
                    f"the broker URL's account may not do this: {_without_data(error)}; use an account of the right "
                    "role and team. If an earlier version made this account, make it again with `mqtune fleet acl`"
                ) from None
            if not isinstance(error, temporary) and not _TEMPORARY_CODES.search(str(error)):
                raise
            now = time.monotonic()
            before, problem = problem, _problem_of(error)
            patience = {_Problem.FULL: full_patience_s, _Problem.REFUSED: refused_patience_s}.get(problem)
            patient_s = patience_s if patience is None else patience
            if problem is not before and (patient_s or problem is _Problem.MISSING):
                _log_wait(error, problem, patient_s)
            since = now if since is None else since
            if now - since >= patient_s or (closing is not None and closing.is_set()):
                raise _given_up(error, problem, now - since) from None
            (closing or threading.Event()).wait(_spread.uniform(wait_s / 2, wait_s))
            wait_s = min(wait_s * 2, RETRY_MAX_S)
        else:
            if since is not None:
                logger.warning("Redis %s after %.1f s", problem.value, time.monotonic() - since)
                on_return()
            return result


class RetryingCaller:
    """Base of classes whose calls to a server are retried while it is missing.

    Args:
        patience_s: how long calls are retried.
        closing: once set, calls are not retried.
    """

    def __init__(self, client: Redis, *, patience_s: float = math.inf, closing: threading.Event | None = None) -> None:
        # redis-py's types include the results of other settings.
        self._client: Any = client
        self._patience_s = patience_s
        self._closing = closing

    def _retrying(self, call: Callable[[], T]) -> T:
        return retrying(call, patience_s=self._patience_s, closing=self._closing)


def _problem_of(error: BaseException) -> _Problem:
    if isinstance(error, AuthenticationError | AuthorizationError):
        return _Problem.REFUSED
    return _Problem.FULL if is_full(error) else _Problem.MISSING


def _given_up(error: BaseException, problem: _Problem, waited_s: float) -> BrokerUnavailable:
    """Return the error to raise when a call is not retried any more."""
    if problem is _Problem.FULL:
        waited = f" and refused for {waited_s:.0f} s" if waited_s else ""
        return BrokerFull(f"{FULL}{waited}; {MAKE_ROOM}")
    if problem is _Problem.REFUSED:
        return BrokerRefused(f"{_refused_in_words(error)}; {_LOG_IN_AGAIN}")
    did = "refused" if isinstance(error, ResponseError) else "gave no answer"
    return BrokerUnavailable(f"Redis {did} for {waited_s:.0f} s: {_without_data(error)}")


def _log_wait(error: BaseException, problem: _Problem, patience_s: float) -> None:
    """Log why a call is retried, and for how long."""
    if problem is _Problem.FULL:
        logger.warning("%s, so writes to it wait; %s", FULL, MAKE_ROOM, extra={"action": "broker_is_full"})
        return
    limit = "" if patience_s == math.inf else f" for up to {patience_s:g} s"
    if problem is _Problem.REFUSED:
        said = _refused_in_words(error)
        logger.warning("%s; %s; trying again%s", said, _LOG_IN_AGAIN, limit, extra={"action": "login_refused"})
        return
    problem_in_words = "takes no writes, or is busy" if isinstance(error, ResponseError) else "is away"
    logger.warning("Redis %s (%s); trying again%s", problem_in_words, _without_data(error), limit)


def _refused_in_words(error: BaseException) -> str:
    return f"Redis refuses the login ({str(error).rstrip('.')})"


def _without_data(error: BaseException) -> str:
    """Return the text of a server's error, without the data of a pipeline's command."""
    return _PIPELINED.sub(r"\1: ", str(error))
