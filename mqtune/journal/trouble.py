"""The troubles of a server that pass: it is away, its memory is used up, or it refuses the login."""

from __future__ import annotations

import logging
import math
from enum import Enum
from typing import Final

from redis.exceptions import AuthenticationError, AuthorizationError, ResponseError

from mqtune.core.errors import BrokerFull, BrokerRefused, BrokerUnavailable
from mqtune.journal.room import FULL, MAKE_ROOM
from mqtune.journal.stream import without_data

logger = logging.getLogger(__name__)

#: The words of a server without memory, in its own error or, where a script met it (6.2), in a script's.
FULL_SAYS: Final = "used memory > 'maxmemory'"
#: The errors of a refused login: the account's password was changed, or the account is gone. For redis-py the server is
#: then away.
_REFUSED: Final = (AuthenticationError, AuthorizationError)
_LOG_IN_AGAIN: Final = "was its password changed? Start this again with the new one in the broker URL"


class Trouble(Enum):
    """The trouble of a server that is tried again; the value says how it ends."""

    NONE = ""
    AWAY = "is back"
    FULL = "has room"
    REFUSED = "takes the login"

    @classmethod
    def of(cls, error: BaseException) -> Trouble:
        """Return the trouble behind an error."""
        if isinstance(error, _REFUSED):
            return cls.REFUSED
        return cls.FULL if is_full(error) else cls.AWAY


def is_full(error: BaseException) -> bool:
    """Return whether a server has refused a command because its memory is used up."""
    return FULL_SAYS in str(error)


def given_up(error: BaseException, trouble: Trouble, waited_s: float) -> BrokerUnavailable:
    """Return the error of a caller whose patience has ended."""
    if trouble is Trouble.FULL:
        waited = f" and refused for {waited_s:.0f} s" if waited_s else ""
        return BrokerFull(f"{FULL}{waited}; {MAKE_ROOM}")
    if trouble is Trouble.REFUSED:
        return BrokerRefused(f"{_refused_in_words(error)}; {_LOG_IN_AGAIN}")
    did = "refused" if isinstance(error, ResponseError) else "gave no answer"
    return BrokerUnavailable(f"Redis {did} for {waited_s:.0f} s: {without_data(error)}")


def log_wait(error: BaseException, trouble: Trouble, patience_s: float) -> None:
    """Log that a server is tried again, why, and for how long."""
    if trouble is Trouble.FULL:
        logger.warning("%s, and what takes memory waits; %s", FULL, MAKE_ROOM, extra={"action": "broker_is_full"})
        return
    limit = "" if patience_s == math.inf else f" for {patience_s:g} s"
    if trouble is Trouble.REFUSED:
        said = _refused_in_words(error)
        logger.warning("%s; %s; trying again%s", said, _LOG_IN_AGAIN, limit, extra={"action": "login_refused"})
        return
    what = "takes no writes, or is busy" if isinstance(error, ResponseError) else "is away"
    logger.warning("Redis %s (%s); trying again%s", what, without_data(error), limit)


def _refused_in_words(error: BaseException) -> str:
    return f"Redis refuses the login ({str(error).rstrip('.')})"
