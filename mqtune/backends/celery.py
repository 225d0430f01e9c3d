"""The Celery backend: it sends attempts to workers as Celery tasks.

This is the only module on the driver's side that imports celery.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from celery import Celery
from celery.loaders.base import BaseLoader
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from kombu.transport import redis as redis_transport
from kombu.utils.json import dumps

from mqtune.backends.base import Offer
from mqtune.backends.queues import QueueBackend
from mqtune.backends.shared import RegisterSource
from mqtune.core.crews import Register
from mqtune.core.keys import EVENT_EXCHANGE, TASK_NAME
from mqtune.core.priorities import MESSAGE_PRIORITIES, Priority
from mqtune.core.tasks import task_name
from mqtune.core.text import in_words
from mqtune.core.trial import Attempt, AttemptEnd, Config, TrialId
from mqtune.journal.server.connection import OneClient, celery_options, celery_tls, celery_url
from mqtune.journal.server.retry import is_full, retrying

logger = logging.getLogger(__name__)


#: The most messages that one command puts on a queue. A longer command would delay other clients of the server.
MOST_AT_ONCE: Final = 256


class Together:
    """Lets a Redis channel of kombu send many messages with one command.

    The messages stay kombu's. If a thousand workers wait for a queue, the server checks all of them for each command,
    which takes 3 ms. A command with a hundred messages takes no longer.

    In a class's bases, it must precede kombu's class.
    """

    #: The messages for each Redis list, inside ``together``. Outside it is None, and messages are sent immediately.
    _gathered: dict[str, list[str]] | None = None

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Send the messages that are published in the block at its end. After an error, send none."""
        gathered: dict[str, list[str]] = {}
        self._gathered = gathered
        try:
            yield
        finally:
            self._gathered = None
        with self.conn_or_acquire() as client:  # type: ignore[attr-defined] # a method of kombu's class
            for key, messages in gathered.items():
                client.lpush(key, *messages)

    def _put(self, queue: str, message: dict[str, object], **options: object) -> None:
        if self._gathered is None:
            super()._put(queue, message, **options)  # type: ignore[misc] # kombu's class is the next one
            return
        priority = self._get_message_priority(message, reverse=False)  # type: ignore[attr-defined] # as above
        key = self._q_for_pri(queue, priority)  # type: ignore[attr-defined] # as above
        self._gathered.setdefault(key, []).append(dumps(message))  # type: ignore[no-untyped-call] # kombu has no types


class _Channel(Together, OneClient, redis_transport.Channel):
    """kombu's channel for a Redis server, with a single client."""


class _FollowingChannel(Together, OneClient, redis_transport.SentinelChannel):
    """kombu's channel for a master behind Sentinels, with a single client."""


class _Connection(Connection):
    """kombu's connection, with the channels of this module in each new transport."""

    def create_transport(self) -> redis_transport.Transport:
        # kombu has no types.
        transport: redis_transport.Transport = super().create_transport()  # type: ignore[no-untyped-call] # as above
        follows = isinstance(transport, redis_transport.SentinelTransport)
        transport.Channel = _FollowingChannel if follows else _Channel
        return transport


class _CeleryLoader(BaseLoader):  # type: ignore[misc] # Celery has no types
    """Celery's loader without a configuration file, which could redirect tasks."""

    def read_configuration(self, *_: object) -> dict[str, object]:
        """Return no settings. Ignore the module in ``CELERY_CONFIG_MODULE``."""
        return {}


class CeleryBackend(QueueBackend):
    """A driver's session with the workers of a broker. It publishes attempts as Celery tasks."""

    def _open(self) -> None:
        self.priority: Priority = "normal"
        #: Returns the register of workers. If it is None, the server is asked.
        self._source: RegisterSource | None = None
        # The loader and the backend given here override CELERY_LOADER and CELERY_RESULT_BACKEND.
        self._app = Celery("mqtune-driver", loader=_CeleryLoader, set_as_current=False)
        self._app.backend_cls = "disabled"
        self._app.amqp.Connection = _Connection
        self._app.conf.update(
            broker_url=celery_url(self._broker),
            broker_use_ssl=celery_tls(self._broker),
            broker_transport_options={
                "socket_keepalive": True,
                "socket_connect_timeout": 5,
                "socket_timeout": 30,
                **celery_options(self._broker),
            },
            result_backend=None,
            task_ignore_result=True,
            task_serializer="json",
            accept_content=["json"],
            event_exchange=EVENT_EXCHANGE,
            # With this event, Flower would show a row without the attempt's name and config.
            task_send_sent_event=False,
        )
        self._connection: Any = None
        self._producer: Any = None

    def _read_register(self) -> Register:
        return super()._read_register() if self._source is None else self._source.refresh()

    def _count_busy(self) -> Mapping[str, Mapping[str, int]]:
        return super()._count_busy() if self._source is None else self._source.busy()

    def read_from(self, source: RegisterSource) -> None:
        """From now on, take the register of workers from *source* and not from the server."""
        self._source = source

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        """Send Flower the Celery event of a lost attempt, in the name of its worker.

        Errors are only logged.
        """
        fields: dict[str, Any] = {"name": self._title, "args": "", "kwargs": in_words(attempt.config)}
        if attempt.started_at is not None and attempt.ended_at is not None:
            fields["runtime"] = attempt.ended_at - attempt.started_at
        try:
            self._connect()
            for number, worker in [
                (0, attempt.worker),
                *((task.number, task.worker) for task in attempt.further_tasks),
            ]:
                uuid = f"{self._experiment}/{task_name(trial, number)}/{attempt.number}"
                # With the worker's name, so that Flower updates the row of the worker's task.
                with self._app.events.Dispatcher(self._connection, hostname=worker) as dispatcher:
                    dispatcher.send(f"task-{AttemptEnd.LOST.value}", uuid=uuid, **fields)
        except Exception as error:  # noqa: BLE001 - monitoring must not disturb the run
            logger.info("Flower is not told that an attempt of trial %s was lost: %s", trial, error)
            self._disconnect()

    def publish_all(self, offers: Sequence[Offer]) -> None:
        """Put the tasks of attempts on queues, like ``publish`` for each, with few commands."""
        placed: list[tuple[Offer, str]] = []
        try:
            for task, shape in itertools.chain.from_iterable(map(self._tasks_to_publish, offers)):
                # Count it now, so that the next one goes to another free slot.
                self._load.put((task.trial, task.attempt), shape.queue)
                placed.append((task, shape.target))
            for begin in range(0, len(placed), MOST_AT_ONCE):
                self._send_all(placed[begin : begin + MOST_AT_ONCE])
        except BaseException:
            for offer, _ in placed:
                self._load.drop((offer.trial, offer.attempt))
            raise

    def _send(self, trial: TrialId, attempt: int, config: Config, queue: str) -> None:
        self._send_all([(Offer(trial, attempt, config), queue)])

    def _send_all(self, placed: Sequence[tuple[Offer, str]]) -> None:
        """Put messages on queues. After an outage, send all of them again, because some may be lost.

        If the server's memory is full, no message is sent and no error raised: no trial could start, and the driver
        publishes them again later.
        """

        def send() -> None:
            self._connect()
            try:
                with self._producer.channel.together():
                    for offer, queue in placed:
                        self._send_task(offer, queue)
            except BaseException as error:
                self._disconnect()
                if is_full(error):
                    return
                raise

        retrying(send, patience_s=self._patience_s, also=(OperationalError, OSError))

    def _send_task(self, offer: Offer, queue: str) -> None:
        self._app.send_task(
            TASK_NAME,
            args=self._task(offer.trial, offer.attempt),
            task_id=f"{self._experiment}/{offer.trial}/{offer.attempt}",
            queue=queue,
            priority=MESSAGE_PRIORITIES[self.priority],
            producer=self._producer,
            ignore_result=True,
            retry=False,
            shadow=self._title,
            argsrepr="",
            kwargsrepr=in_words(offer.config),
        )

    def close(self) -> None:
        self._disconnect()
        self._app.close()

    def _connect(self) -> None:
        if self._producer is None:
            # Without a URL, Celery would use CELERY_BROKER_URL.
            self._connection = self._app.connection_for_write(celery_url(self._broker))
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = self._producer = None
