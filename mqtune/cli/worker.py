"""``mqtune worker``: starts a Celery worker that runs trials."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mqtune.cli.output import broker_option, say, timing_of_command
from mqtune.core.errors import BrokerUnavailable, ConfigurationError, MqtuneError

if TYPE_CHECKING:
    from mqtune.services.exporter.worker import Observer
    from mqtune.worker.loop.settings import WorkerSettings

#: An option --name that can also be set by the environment variable MQTUNE_NAME.
_setting: Final = partial(click.option, show_default=True, show_envvar=True)
_option: Final = partial(click.option, allow_from_autoenv=False)
_FOLDER: Final = click.Path(file_okay=False, path_type=Path)


@click.command("worker", context_settings={"auto_envvar_prefix": "MQTUNE"})
@broker_option("The Redis server that the drivers use, such as redis://:password@head:6379/0.", required=True)
@_setting("--gpus", default="auto", help="GPUs to use: auto, a number, or a list such as 0,1.")
@_setting("--slots-per-gpu", type=int, default=1, help="Trials that share a GPU.")
@_setting("--gpus-per-slot", type=int, default=1, help="GPUs for each trial.")
@_setting(
    "--pack-gpus",
    type=int,
    help="Share each GPU among up to this many trials, as far as the memory that they ask for fits on it.",
)
@_setting(
    "--strict-gpu-memory",
    is_flag=True,
    help="With --pack-gpus: end a trial that uses more GPU memory than it asked for.",
)
@_setting("--gpu-memory", default="auto", help="Memory of each GPU in GB, or auto to ask nvidia-smi.")
@_setting("--cpus", type=int, help="CPU cores that the slots share; by default all.")
@_setting(
    "--slots",
    type=int,
    help="Number of trials on a machine without GPUs; by default one per core. With --drivers, it may be 0.",
)
@_setting("--tags", default="", show_default=False, help="Tags that trials can require, such as a100,nvlink.")
@_setting(
    "--health-check",
    default="",
    show_default=False,
    help="Command that is run for a slot, and fails if the slot should take no trial: 'nvidia-smi -i "
    "$CUDA_VISIBLE_DEVICES'.",
)
@_setting("--code-root", type=_FOLDER, help="Folder that contains the trainables; by default the current one.")
@_setting("--log-root", type=_FOLDER, help="Folder for the output of trials; by default ~/mqtune.")
@_setting(
    "--grace",
    "grace_s",
    envvar="MQTUNE_GRACE",
    type=float,
    default=10.0,
    help="Seconds that trials have to save a checkpoint and exit when the worker shuts down.",
)
@_setting(
    "--hold-seats",
    "reserve_s",
    envvar="MQTUNE_HOLD_SEATS",
    type=float,
    default=30.0,
    help="Seconds that a reserved slot waits for the other slots of a trial over several machines.",
)
@_setting(
    "--experiments",
    default="*",
    help="Only run trials of these experiments; * is a wildcard: 'team-a-*'. For teams with separate accounts that "
    "share the worker: 'team-a-*,team-b-*'.",
)
@_setting(
    "--remote-control/--no-remote-control",
    default=True,
    help="Obey Celery's remote commands: inspect, terminate, shutdown.",
)
@_setting(
    "--accept-code",
    is_flag=True,
    help="Run code that drivers send (Process(bundle=…)), if it is signed with $MQTUNE_CODE_KEY.",
)
@_setting(
    "--drivers",
    type=int,
    default=0,
    help="Number of driver slots: how many scripts from `mqtune submit` run at the same time, if they are signed with "
    "$MQTUNE_CODE_KEY. They use no slots of trials.",
)
@_setting(
    "--driver-broker",
    metavar="URL",
    default="",
    show_default=False,
    help="The same Redis server with a driver's account, for those scripts; by default --broker.",
)
@_setting(
    "--user", default="", show_default=False, help="User that the worker and its trials run as, if root starts it."
)
@_setting(
    "--metrics-port", type=click.IntRange(0, 65_535), help="Port to serve metrics for Prometheus at; by default none."
)
@_setting("--metrics-address", default="127.0.0.1", help="Address to serve these metrics at.")
@_option("--name", help="Name of the worker, as Celery's node; @host is appended.")
@_option(
    "--check",
    is_flag=True,
    help="Start nothing. Exit with 0 if a worker of this machine (with --name, of that name) is connected, else with "
    "1.",
)
@_option("--loglevel", default="INFO", show_default=True, help="Celery's log level.")
@_setting(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Log as text, or as one JSON object per line.",
)
@_setting("--owner-fd", type=int, hidden=True)
def command(broker: str, name: str | None, check: bool, loglevel: str, **options: Any) -> None:
    """Run trials on this machine, one per slot.

    This is Celery's own worker, so `celery inspect`, `celery control` and Flower work with it. Ctrl-C shuts the worker
    down and requeues its trials.
    """
    if check:
        say(_check(broker, name))
        return
    from mqtune.services.worker import worker_app  # noqa: PLC0415 - celery takes half a second

    app = worker_app(_settings(broker=broker, timing=timing_of_command(), **options))
    node = f"{name or f'mqtune-{os.getpid()}'}@%h"
    sys.exit(app.worker_main(["worker", "--hostname", node, "--loglevel", loglevel]))


def settings_from_environment() -> WorkerSettings:
    """Return the settings in environment variables, for a worker that Celery's command starts.

    Raises:
        ConfigurationError: the broker is missing, or a value is invalid.
    """
    if not os.environ.get("MQTUNE_BROKER"):
        raise ConfigurationError(
            "MQTUNE_BROKER is not set; give the Redis that the drivers use: redis://:password@head:6379/0"
        )
    try:
        options = command.make_context("mqtune worker", []).params
    except click.ClickException as error:
        raise ConfigurationError(error.format_message()) from None
    for command_option in ("name", "check", "loglevel"):
        del options[command_option]
    return _settings(**options)


def _settings(
    *,
    code_root: Path | None,
    log_root: Path | None,
    user: str,
    metrics_port: int | None,
    metrics_address: str,
    **others: Any,
) -> WorkerSettings:
    from mqtune.worker.loop.settings import WorkerSettings, default_log_root  # noqa: PLC0415 - as above

    return WorkerSettings(
        code_root=(code_root or Path.cwd()).absolute(),
        log_root=(log_root or default_log_root(user)).absolute(),
        user=user,
        observe=None if metrics_port is None else _served_at(metrics_port, metrics_address),
        **others,
    )


def _served_at(port: int, address: str) -> Observer:
    from mqtune.services.exporter.prometheus import serve_worker  # noqa: PLC0415 - prometheus_client is an extra
    from mqtune.services.exporter.worker import Observer  # noqa: PLC0415 - as above

    return Observer(partial(serve_worker, port, address))


def _check(broker: str, name: str | None) -> str:
    """Return the state of this machine's worker, for a health check.

    While Redis is down the check passes: the worker waits, and a restart would end its trials.

    Raises:
        MqtuneError: Redis has no such worker, or refuses the account.
    """
    from mqtune.journal.exchange.fleet import Fleet  # noqa: PLC0415
    from mqtune.journal.server.connection import CONNECT_TIMEOUT_S, connect  # noqa: PLC0415 - as above

    try:
        with contextlib.closing(connect(broker, role="check")) as client:
            workers = Fleet(client, patience_s=CONNECT_TIMEOUT_S).workers()
    except BrokerUnavailable as error:
        return f"Redis can't be asked for the worker, which also waits for Redis: {error}"
    host = socket.gethostname()
    matching = [
        info for info in workers if info.host == host and name in (None, info.name, info.name.partition("@")[0])
    ]
    if not matching:
        which = f"worker {name!r}" if name else "worker"
        raise MqtuneError(
            f"no {which} of this machine ({host}) is among the {len(workers)} connected workers; see its log"
        )
    return "\n".join(
        f"{info.name}: {info.slots} slots of {info.queue}{f'; {info.note}' if info.note else ''}" for info in matching
    )
