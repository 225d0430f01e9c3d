"""The Celery backend: attempts go to workers as Celery tasks.

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
from mqtune.core.seats import seat_name
from mqtune.core.text import in_words
from mqtune.core.trial import Attempt, AttemptEnd, Config, TrialId
from mqtune.journal.server.connection import OneClient, celery_options, celery_tls, celery_url
from mqtune.journal.server.retry import is_full, retrying

logger = logging.getLogger(__name__)


#: The most messages that one command puts on a queue: more would hold up for long what others want of the server.
MOST_AT_ONCE: Final = 256


class Together:
    """Lets a Redis channel of kombu send many messages by one command.

    A server on which a thousand workers wait for a queue takes 3 ms to serve one of them, as it looks at all of them; to serve
    a hundred by one command takes it no longer. Messages and their order are those of kombu.

    To be named before kombu's class among the bases.
    """

    #: By list, the messages to put there; None while each is put there immediately.
    _gathered: dict[str, list[str]] | None = None

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Put what is published meanwhile on its queues in the end, unless there is an error."""
        gathered: dict[str, list[str]] = {}
        self._gathered = gathered
        try:
            yield
        finally:
            self._gathered = None
        # Types are ignored here and below: kombu's class, which follows this one among the bases, is untyped.
        with self.conn_or_acquire() as client:  # type: ignore[attr-defined]
            for key, messages in gathered.items():
                client.lpush(key, *messages)

    def _put(self, queue: str, message: dict[str, object], **options: object) -> None:
        if self._gathered is None:
            super()._put(queue, message, **options)  # type: ignore[misc]
            return
        priority = self._get_message_priority(message, reverse=False)  # type: ignore[attr-defined]
        key = self._q_for_pri(queue, priority)  # type: ignore[attr-defined]
        self._gathered.setdefault(key, []).append(dumps(message))  # type: ignore[no-untyped-call]


class _Channel(Together, OneClient, redis_transport.Channel):
    """kombu's channel, with a single client."""


class _FollowingChannel(Together, OneClient, redis_transport.SentinelChannel):
    """The same, to the master that Sentinels name."""


class _Connection(Connection):
    """kombu's connection. It keeps our channels when kombu makes a new transport, as for a Sentinel."""

    def create_transport(self) -> redis_transport.Transport:
        # kombu has no types.
        transport: redis_transport.Transport = super().create_transport()  # type: ignore[no-untyped-call]
        follows = isinstance(transport, redis_transport.SentinelTransport)
        transport.Channel = _FollowingChannel if follows else _Channel
        return transport


class _CeleryLoader(BaseLoader):  # type: ignore[misc] # Celery has no types
    """Celery's loader without a configuration, so that another project's does not redirect tasks."""

    def read_configuration(self, *_: object) -> dict[str, object]:
        """Return no settings, whatever ``CELERY_CONFIG_MODULE`` names."""
        return {}


class CeleryBackend(QueueBackend):
    """A driver's session with the workers of a broker: it publishes attempts as Celery tasks."""

    def _open(self) -> None:
        self.priority: Priority = "normal"
        #: Has the register in place of the server.
        self._source: RegisterSource | None = None
        # The loader and the backend given here precede those of CELERY_LOADER and CELERY_RESULT_BACKEND.
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
            # The sent event would make a row in Flower without the attempt's name and config.
            task_send_sent_event=False,
        )
        self._connection: Any = None
        self._producer: Any = None

    def _read_register(self) -> Register:
        return super()._read_register() if self._source is None else self._source.refresh()

    def _count_busy(self) -> Mapping[str, Mapping[str, int]]:
        return super()._count_busy() if self._source is None else self._source.busy()

    def read_from(self, source: RegisterSource) -> None:
        """Take the register from *source* from now on, and not from the server."""
        self._source = source

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        """Send the Celery event of a lost attempt in place of its worker, for Flower.

        Failures are only logged.
        """
        fields: dict[str, Any] = {
            "name": self._title,
            "args": "",
            "kwargs": in_words(attempt.config),
        }
        if attempt.started_at is not None and attempt.ended_at is not None:
            fields["runtime"] = attempt.ended_at - attempt.started_at
        try:
            self._connect()
            for number, worker in [(0, attempt.worker), *((seat.number, seat.worker) for seat in attempt.seats)]:
                uuid = f"{self._experiment}/{seat_name(trial, number)}/{attempt.number}"
                # Sent as the worker, so that its row is updated.
                with self._app.events.Dispatcher(self._connection, hostname=worker) as dispatcher:
                    dispatcher.send(f"task-{AttemptEnd.LOST.value}", uuid=uuid, **fields)
        except Exception as error:  # noqa: BLE001 - monitoring must not disturb the run
            logger.info("no event for Flower that an attempt of trial %s was lost: %s", trial, error)
            self._disconnect()

    def publish_all(self, offers: Sequence[Offer]) -> None:
        """Put the tasks of attempts on queues as ``publish`` does, by one command for many."""
        placed: list[tuple[Offer, str]] = []
        try:
            for task, shape in itertools.chain.from_iterable(map(self._place_all, offers)):
                # The next one goes to a slot that this one leaves free.
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
        """Put messages on queues; all of them again after an outage, as some may have been lost.

        On a full server they are left out: nothing could begin, the driver has other work, and it publishes them again later.
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
            # Without the URL, Celery would take that of CELERY_BROKER_URL.
            self._connection = self._app.connection_for_write(celery_url(self._broker))
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = self._producer = None
