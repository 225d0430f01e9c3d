"""Follows an experiment from another process: python examples/follow.py NAME [--broker URL].

It reads the experiment's metrics channel (pub/sub) and fills gaps from its journal; the experiment notices nothing.
Without a broker, by --broker or $MQTUNE_BROKER, it follows one that runs on this machine with an embedded server.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from mqtune.backends.local.server import EmbeddedServer
from mqtune.core.errors import MqtuneError
from mqtune.core.events import AttemptEnded, AttemptStarted, DecisionTaken, Event, ExperimentEnded, Reports, TrialStaged
from mqtune.core.machine import mqtune_home
from mqtune.results import follow


def main() -> None:
    """Print a line for each thing that happens, until the experiment has ended."""
    parser = argparse.ArgumentParser(description="Follow an experiment.")
    parser.add_argument("name", help="the experiment's name")
    parser.add_argument(
        "--broker",
        default=os.environ.get("MQTUNE_BROKER"),
        help="the Redis that it uses, as redis://:password@head:6379/0; by default $MQTUNE_BROKER",
    )
    parser.add_argument("--from-now", action="store_true", help="leave out what has happened so far")
    arguments = parser.parse_args()
    url = arguments.broker or EmbeddedServer.running_url(mqtune_home() / arguments.name)
    if url is None:
        sys.exit(
            f"{arguments.name} does not run on this machine; give --broker, or look at it: mqtune show {arguments.name}"
        )
    try:
        for event in follow(url, arguments.name, from_start=not arguments.from_now):
            for line in describe(event):
                print(line, flush=True)
    except MqtuneError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        pass


def describe(event: Event) -> list[str]:
    """Return an event as lines: one, or one for each report."""
    match event:
        case TrialStaged():
            return [f"{clock(event.at)}  {event.trial}  staged {event.config}"]
        case AttemptStarted():
            return [f"{clock(event.at)}  {event.trial}  started on {event.worker}"]
        case Reports():
            return [
                f"{clock(report.timestamp)}  {report.trial}  #{report.sequence} {report.metrics}" for report in event
            ]
        case DecisionTaken():
            return [f"{clock(event.at)}  {event.trial}  {event.action}: {event.reason}"]
        case AttemptEnded():
            return [f"{clock(event.at)}  {event.trial}  {event.end.value}"]
        case ExperimentEnded():
            return [f"{clock(event.at)}  {event.outcome}"]
    return []


def clock(timestamp: float) -> str:
    """Return a time of day with its milliseconds."""
    return time.strftime("%H:%M:%S", time.localtime(timestamp)) + f".{int(timestamp % 1 * 1000):03d}"


if __name__ == "__main__":
    main()
