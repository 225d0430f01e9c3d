"""Repeats a call while its server is away or full, or refuses the login."""

from __future__ import annotations

import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeVar

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

RETRY_MAX_S: Final = 1.0
#: A thousand workers that have lost their connections at the same time must not all return together. It has a
#: generator of its own, as trials' drivers are seeded.
_spread: Final = random.Random()
#: Errors that pass: the server is away, loading, demoted, or full.
_AWAY: Final[tuple[type[BaseException], ...]] = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
)
#: The same errors where redis-py has no class for them, or where the server (6.2) wraps them because a script met them:
#: its disk is full, its replicas or its master are away, a script holds it up.
_AWAY_CODES: Final = re.compile(r"(?:^|-)(?:MISCONF|NOREPLICAS|MASTERDOWN|BUSY|UNBLOCKED|OOM|READONLY) ")
#: Errors that no later try mends: the account may not do it. Celery and scripts wrap the server's words; Redis 7.0's
#: scripts say only "The user executing the script can't run this command".
_DENIED: Final = re.compile(r"NOPERM|ACL failure|no permissions? |the user executing the script can't ", re.IGNORECASE)
#: The words of a server without memory, in its own error or, where a script met it (6.2), in a script's.
_FULL_SAYS: Final = "used memory > 'maxmemory'"
#: The beginning of a pipeline's error, in which redis-py has the whole command. Its name and its key are kept.
_PIPELINED: Final = re.compile(r"Command # \d+ \((\S+(?: \S+)?).*?\) of pipeline caused error: ", re.DOTALL)
_LOG_IN_AGAIN: Final = "was its password changed? Start this again with the new one in the broker URL"


class _Trouble(Enum):
    """The trouble of a server that is tried again; the value says how it ends."""

    NONE = ""
    AWAY = "is back"
    FULL = "has room"
    #: The account's password was changed, or the account is gone. For redis-py the server is then away.
    REFUSED = "takes the login"


def is_full(error: BaseException) -> bool:
    """Return whether a server has refused a command because its memory is used up."""
    return _FULL_SAYS in str(error)


def is_about_server(text: str) -> bool:
    """Return whether an error that a script has caught is about the server, not about keys."""
    return bool(_AWAY_CODES.search(text) or _DENIED.search(text) or _FULL_SAYS in text)


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
    """Return the result of *call*, and repeat it while the server is away or full.

    redis-py's own retry would not do: it stops after a number of tries instead of a time, knows no server that is full
    or refuses a login, and can't be ended by another thread.

    Args:
        call: may be repeated.
        patience_s: how long it is tried again.
        full_patience_s: the same while the server is full; by default *patience_s*.
        refused_patience_s: the same while the server refuses the login; by default *patience_s*.
        closing: once it is set, nothing is tried again.
        also: further errors of a server that is away.
        on_return: called when the server has been away and is back.

    Raises:
        BrokerFull: the server was full for as long.
        BrokerRefused: the server refused the login for as long.
        BrokerUnavailable: no answer for *patience_s* seconds, or *closing* was set meanwhile.
        AccessDenied: the account may not do it.
    """
    away = _AWAY + also
    caught: tuple[type[BaseException], ...] = (*away, ResponseError)
    since: float | None = None
    trouble = _Trouble.NONE
    wait_s = timing.first_retry_s
    while True:
        try:
            result = call()
        except caught as error:
            if _DENIED.search(str(error)):
                raise AccessDenied(
                    f"the broker URL's account may not do this: {_without_data(error)}; it is for another role or "
                    "team, or an earlier version made the account: `mqtune fleet acl` of this version makes it again"
                ) from None
            if not isinstance(error, away) and not _AWAY_CODES.search(str(error)):
                raise
            now = time.monotonic()
            before, trouble = trouble, _trouble_of(error)
            patience = {_Trouble.FULL: full_patience_s, _Trouble.REFUSED: refused_patience_s}.get(trouble)
            patient_s = patience_s if patience is None else patience
            if trouble is not before and (patient_s or trouble is _Trouble.AWAY):
                _log_wait(error, trouble, patient_s)
            since = now if since is None else since
            if now - since >= patient_s or (closing is not None and closing.is_set()):
                raise _given_up(error, trouble, now - since) from None
            (closing or threading.Event()).wait(_spread.uniform(wait_s / 2, wait_s))
            wait_s = min(wait_s * 2, RETRY_MAX_S)
        else:
            if since is not None:
                logger.warning("Redis %s after %.1f s", trouble.value, time.monotonic() - since)
                on_return()
            return result


def _trouble_of(error: BaseException) -> _Trouble:
    if isinstance(error, AuthenticationError | AuthorizationError):
        return _Trouble.REFUSED
    return _Trouble.FULL if is_full(error) else _Trouble.AWAY


def _given_up(error: BaseException, trouble: _Trouble, waited_s: float) -> BrokerUnavailable:
    """Return the error of a caller whose patience has ended."""
    if trouble is _Trouble.FULL:
        waited = f" and refused for {waited_s:.0f} s" if waited_s else ""
        return BrokerFull(f"{FULL}{waited}; {MAKE_ROOM}")
    if trouble is _Trouble.REFUSED:
        return BrokerRefused(f"{_refused_in_words(error)}; {_LOG_IN_AGAIN}")
    did = "refused" if isinstance(error, ResponseError) else "gave no answer"
    return BrokerUnavailable(f"Redis {did} for {waited_s:.0f} s: {_without_data(error)}")


def _log_wait(error: BaseException, trouble: _Trouble, patience_s: float) -> None:
    """Log why a server is tried again, and for how long."""
    if trouble is _Trouble.FULL:
        logger.warning("%s, and what takes memory waits; %s", FULL, MAKE_ROOM, extra={"action": "broker_is_full"})
        return
    limit = "" if patience_s == math.inf else f" for {patience_s:g} s"
    if trouble is _Trouble.REFUSED:
        said = _refused_in_words(error)
        logger.warning("%s; %s; trying again%s", said, _LOG_IN_AGAIN, limit, extra={"action": "login_refused"})
        return
    trouble_in_words = "takes no writes, or is busy" if isinstance(error, ResponseError) else "is away"
    logger.warning("Redis %s (%s); trying again%s", trouble_in_words, _without_data(error), limit)


def _without_data(error: BaseException) -> str:
    """Return a server's error in words, without the data of a pipeline's command."""
    return _PIPELINED.sub(r"\1: ", str(error))


def _refused_in_words(error: BaseException) -> str:
    return f"Redis refuses the login ({str(error).rstrip('.')})"
