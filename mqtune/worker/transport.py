"""How a worker takes Celery's messages off Redis: with less than kombu's own way costs, and past what is no message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any

from kombu.transport import redis as redis_transport

from mqtune.journal.client import OneClient

__all__ = ["TrialChannel", "TrialTransport"]

logger = logging.getLogger(__name__)


class TrialChannel(OneClient, redis_transport.Channel):
    """kombu's channel without the round trip that acknowledges what nobody keeps, and with one client instead of many."""

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Do nothing: the worker's queue is consumed without acknowledgements."""

    def _brpop_read(self, **options: Any) -> Any:
        return _unless_nonsense(partial(super()._brpop_read, **options))

    def _receive_one(self, client: Any) -> Any:
        return _unless_nonsense(partial(super()._receive_one, client))


class TrialTransport(redis_transport.Transport):
    """kombu's Redis transport with the channel above."""

    Channel = TrialChannel


def _unless_nonsense(read: Callable[[], Any]) -> Any:
    """Read a message and have it dealt with; one that is none of Celery's is thrown away, where it would end the worker."""
    try:
        return read()
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError):
        logger.warning("a message that is none of Celery's was thrown away", exc_info=True)
        raise Empty from None
