"""Priorities of experiments, and the order in which workers serve their messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

from mqtune.core.resources import queues_of

Priority = Literal["high", "normal", "low"]
#: All priorities, the highest first.
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
#: Celery message priority of each experiment priority. kombu keeps a Redis list for each. The list for "normal" has the
#: queue's own name, and also gets the messages without a priority.
MESSAGE_PRIORITIES: Final[Mapping[Priority, int]] = {"high": 3, "normal": 0, "low": 6}
#: Order in which workers read those lists. 9 is kombu's lowest priority.
MESSAGE_ORDER: Final = (*(MESSAGE_PRIORITIES[priority] for priority in PRIORITIES), 9)
#: kombu's separator between queue name and priority.
_PRIORITY_MARK: Final = "\x06\x16"


def lists_of(name: str) -> list[str]:
    """Return the Redis lists with the messages for slots, in the workers' reading order.

    *name* is the slots' name by ``queue_name``. Each of their queues has one list for each priority.
    """
    return [
        f"{queue}{_PRIORITY_MARK}{number}" if number else queue for number in MESSAGE_ORDER for queue in queues_of(name)
    ]
