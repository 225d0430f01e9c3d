"""The driver's hand on Celery: publishes attempts to the queue of the slots that fit, and knows what the fleet offers.

This is the only module of the driver's side that imports celery.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from celery import Celery
from kombu.exceptions import OperationalError

from mqtune.journal.connection import Client, celery_url
from mqtune.journal.fleet import Fleet
from mqtune.journal.redis import retrying
from mqtune.keys import TASK_NAME
from mqtune.messages import WorkerInfo
from mqtune.resources import Resources, queue_name
from mqtune.trial import Config, TrialId
from mqtune.version import __version__

__all__ = ["CeleryBackend"]

logger = logging.getLogger(__name__)


class CeleryBackend:
    """Publishes attempts of one experiment.

    Publishing is idempotent: the task's id is the attempt's, and only one claim of it is ever granted. A published
    message may be lost; the driver then publishes it again.

    Args:
        client: a checked connection.
        broker: the same server, as a URL.
        experiment: the experiment's name.
        title: what Flower shows as the task's name.
        digest: of the experiment's definition.
        resources: what each trial asks for.
        patience_s: how long a call goes on trying while the server is away.
    """

    def __init__(
        self,
        client: Client,
        broker: str,
        *,
        experiment: str,
        title: str,
        digest: str,
        resources: Resources,
        patience_s: float,
    ) -> None:
        self._fleet = Fleet(client, patience_s=patience_s)
        self._patience_s = patience_s
        self._experiment = experiment
        self._title = title
        self._digest = digest
        self._resources = resources
        self._workers: list[WorkerInfo] = []
        self._fitting: list[WorkerInfo] = []
        self._app = Celery("mqtune-driver", set_as_current=False)
        self._app.conf.update(
            broker_url=celery_url(broker),
            broker_transport_options={"socket_keepalive": True, "socket_connect_timeout": 5, "socket_timeout": 30},
            result_backend=None,
            task_ignore_result=True,
            task_serializer="json",
            accept_content=["json"],
            # The sent event would show a row without the attempt's name and config.
            task_send_sent_event=False,
        )
        self._connection: Any = None
        self._producer: Any = None

    def refresh(self) -> None:
        """Look at which workers there are now."""
        self._workers = self._fleet.workers()
        self._fitting = [
            info
            for info in self._workers
            if info.version.split(".")[:2] == __version__.split(".")[:2] and self._resources.fits(_offer(info))
        ]

    @property
    def slots(self) -> int:
        """How many slots fit, over all workers, as of the last refresh; other experiments may use them too."""
        return sum(info.slots for info in self._fitting)

    @property
    def queue(self) -> str:
        """The queue of the smallest slots that fit."""
        offers = {info.queue: info.cpus for info in self._fitting}
        return min(offers, key=lambda queue: offers[queue]) if offers else queue_name(self._resources)

    def why_no_slot(self) -> str:
        """Say what was asked for, and what the workers offer instead."""
        asked = f"no worker offers a slot with {self._resources}"
        if not self._workers:
            return f"{asked}: no worker is connected; start one with `mqtune worker --broker …`"
        offers = "; ".join(
            f"{info.name}: {info.slots} × {_offer(info)}, mqtune {info.version}"
            for info in self._workers[:_SHOWN_WORKERS]
        )
        more = len(self._workers) - _SHOWN_WORKERS
        version = (
            ""
            if all(info.version == __version__ for info in self._workers)
            else f" This driver is mqtune {__version__}."
        )
        return f"{asked}; connected: {offers}{f' and {more} more' if more > 0 else ''}.{version}"

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        """Put an attempt's id on the queue; the config travels only as a text for people to read."""
        task_id = f"{self._experiment}/{trial}/{attempt}"
        text = " ".join(f"{name}={_short(value)}" for name, value in config.items())

        def send() -> None:
            if self._producer is None:
                self._connection = self._app.connection_for_write()
                self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)
            try:
                self._app.send_task(
                    TASK_NAME,
                    args=(self._experiment, trial, attempt, self._digest),
                    task_id=task_id,
                    queue=self.queue,
                    producer=self._producer,
                    ignore_result=True,
                    retry=False,
                    shadow=self._title,
                    argsrepr="",
                    kwargsrepr=text,
                )
            except BaseException:
                self._disconnect()
                raise

        retrying(send, patience_s=self._patience_s, also=(OperationalError, OSError))

    def queued(self) -> set[tuple[str, int]] | None:
        """Return the attempts of this experiment that wait in the queue; None when the queue is too long to look through."""
        messages = self._fleet.queued(self.queue)
        if messages is None:
            return None
        waiting = set()
        for headers in messages:
            experiment, _, rest = str(headers.get("id")).partition("/")
            trial, _, attempt = rest.partition("/")
            if experiment == self._experiment and attempt.isdecimal():
                waiting.add((trial, int(attempt)))
        return waiting

    def close(self) -> None:
        """Close the connections to the broker."""
        self._disconnect()
        self._app.close()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.release()
            self._connection = self._producer = None


#: Workers that a message about the fleet names; more would not be read.
_SHOWN_WORKERS: Final = 5


def _offer(info: WorkerInfo) -> Resources:
    return Resources(gpus=info.gpus, cpus=info.cpus)


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
