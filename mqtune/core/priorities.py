"""Priorities of experiments, and the order in which workers take their messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

from mqtune.core.resources import queues_of

Priority = Literal["high", "normal", "low"]
#: From the first to be served to the last.
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
#: The priority of a Celery message, by the priority of its experiment. kombu keeps a list for each. The list of
#: "normal" has the name of the queue; it also has the messages without a priority.
MESSAGE_PRIORITIES: Final[Mapping[Priority, int]] = {"high": 3, "normal": 0, "low": 6}
#: The order in which workers take from those lists; 9 is the last that kombu knows.
MESSAGE_ORDER: Final = (*(MESSAGE_PRIORITIES[each] for each in PRIORITIES), 9)
#: kombu's text between the name of a queue and a priority.
_PRIORITY_MARK: Final = "\x06\x16"


def lists_of(name: str) -> list[str]:
    """Return the Redis lists in which messages wait for slots of this name.

    Workers take from the first list first. Each of their queues has one for each priority.
    """
    return [
        f"{queue}{_PRIORITY_MARK}{number}" if number else queue for number in MESSAGE_ORDER for queue in queues_of(name)
    ]
