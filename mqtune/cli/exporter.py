"""``mqtune fleet exporter``: serves a fleet's metrics for Prometheus."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from typing import Final

import click

from mqtune.cli.output import broker_option, say, timing_of_command
from mqtune.core.errors import BrokerRefused, BrokerTooOld, BrokerUnavailable
from mqtune.core.text import printable

_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"


@click.command("exporter")
@broker_option("The Redis server that drivers and workers use.", required=True)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=9810, show_default=True, help="Port to serve at; 0: any free one."
)
@click.option("--address", default="127.0.0.1", show_default=True, help="Address to serve at. There is no password.")
def _exporter(broker: str, port: int, address: str) -> None:
    """Serve a fleet's metrics for Prometheus, until Ctrl-C or SIGTERM.

    The metrics are waiting trials by experiment and queue; shares, quotas and slots; missing or lagging drivers; Redis'
    memory; and the ends of attempts by device. They are read on each scrape. A monitor's account is enough.
    """
    from mqtune.journal.server.connection import connect, redact  # noqa: PLC0415 - needs redis, and the extra prometheus
    from mqtune.services.exporter.fleet import FleetReader  # noqa: PLC0415
    from mqtune.services.exporter.prometheus import serve_figures  # noqa: PLC0415

    reader = FleetReader(broker, timing=timing_of_command())
    try:
        with contextlib.closing(connect(broker, role="exporter")):
            pass
    except (BrokerRefused, BrokerTooOld):
        raise
    except BrokerUnavailable as error:
        click.echo(f"mqtune: {printable(str(error))}; mqtune_redis_up is 0 until it answers", err=True)
    logging.basicConfig(format=_FORMAT, level=logging.WARNING)
    # This logger warns of each failed attempt to connect.
    logging.getLogger("mqtune.journal.redis").setLevel(logging.ERROR)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    served_port = serve_figures(port, address, reader)
    say(f"metrics of {redact(broker)} for Prometheus at http://{address}:{served_port}/metrics")
    sys.stdout.flush()
    ended.wait()


COMMANDS: Final = {"exporter": _exporter}
