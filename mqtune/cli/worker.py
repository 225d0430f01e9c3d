"""``mqtune worker``: starts a Celery worker that runs trials."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_type_hints

import click

from mqtune.cli.output import broker_option, say, timing_of_command
from mqtune.core.errors import BrokerUnavailable, ConfigurationError, MqtuneError
from mqtune.services.settings import SETTINGS, worker_settings
from mqtune.worker import Option, WorkerSettings, default_log_root, options_of

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
#: A command, or a function that becomes one.
C = TypeVar("C", bound=Callable[..., Any])


def _option_of(declared: Field[Any], option: Option, annotation: object) -> Callable[[C], C]:
    """Return the option of the command line for a field of a worker's settings."""
    name = option.name or declared.name
    flag = "--" + name.replace("_", "-")
    types = [kind for kind in (get_args(annotation) or (annotation,)) if kind is not type(None)]
    details: dict[str, Any] = {"type": types[0]}
    if types == [bool]:
        flag += f"/--no-{name.replace('_', '-')}" if declared.default else ""
        details = {"is_flag": True}
    elif option.range is not None:
        details = {"type": click.IntRange(*option.range)}
    elif types == [Path]:
        details = {"type": _FOLDER}
    elif isinstance(types[0], str):
        details = {"type": click.Choice(types)}
    return click.option(
        flag,
        declared.name,
        envvar=f"MQTUNE_{name.upper()}",
        default=None if declared.default is MISSING else declared.default,
        help=option.help,
        metavar=option.metavar or None,
        show_default=declared.default not in ("", MISSING),
        show_envvar=True,
        hidden=option.is_hidden,
        **details,
    )


def _options(command: C) -> C:
    """Add the options of a worker and its services to a command, in their order."""
    kinds: tuple[type[Any], ...] = (WorkerSettings, *SETTINGS)
    options = [
        _option_of(declared, option, get_type_hints(kind)[declared.name])
        for kind in kinds
        for declared, option in options_of(kind)
    ]
    for add in reversed(options):
        command = add(command)
    return command


@click.command("worker")
@broker_option("The Redis server that the drivers use, such as redis://:password@head:6379/0.", required=True)
@_options
@click.option("--name", help="Name of the worker, as Celery's node; @host is appended.")
@click.option(
    "--check",
    is_flag=True,
    help="Start nothing. Exit with 0 if a worker of this machine (with --name, of that name) is connected, else with "
    "1.",
)
@click.option("--loglevel", default="INFO", show_default=True, help="Celery's log level.")
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


def _settings(*, code_root: Path | None, log_root: Path | None, user: str, **others: Any) -> WorkerSettings:
    code_root, log_root = code_root or Path.cwd(), log_root or default_log_root(user)
    return worker_settings({"code_root": code_root.absolute(), "log_root": log_root.absolute(), "user": user, **others})


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
