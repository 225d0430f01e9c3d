"""``mqtune worker``: starts Celery's worker with mqtune's pool."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

import click

from mqtune.core.errors import BrokerUnavailable, MqtuneError

__all__ = ["command"]


@click.command("worker")
@click.option("--broker", envvar="MQTUNE_BROKER", help="The Redis that the drivers use: redis://:password@head:6379/0.")
@click.option(
    "--gpus", envvar="MQTUNE_GPUS", default="auto", show_default=True, help="auto, a number, or a list such as 0,1."
)
@click.option(
    "--slots-per-gpu",
    envvar="MQTUNE_SLOTS_PER_GPU",
    type=int,
    default=1,
    show_default=True,
    help="Trials that share a GPU.",
)
@click.option(
    "--gpus-per-slot",
    envvar="MQTUNE_GPUS_PER_SLOT",
    type=int,
    default=1,
    show_default=True,
    help="GPUs that a trial gets.",
)
@click.option(
    "--gpu-memory",
    envvar="MQTUNE_GPU_MEMORY",
    default="auto",
    show_default=True,
    help="GB of each GPU, or auto to ask nvidia-smi.",
)
@click.option("--cpus", envvar="MQTUNE_CPUS", type=int, help="CPU cores that the slots share; by default all.")
@click.option(
    "--slots", envvar="MQTUNE_SLOTS", type=int, help="Without GPUs: trials at once; by default one for each core."
)
@click.option("--tags", envvar="MQTUNE_TAGS", default="", help="Tags that trials can ask for: a100,nvlink.")
@click.option(
    "--code-root",
    envvar="MQTUNE_CODE_ROOT",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder below which trainables must be; by default the current one.",
)
@click.option(
    "--log-root",
    envvar="MQTUNE_LOG_ROOT",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the trials' output; by default ~/mqtune.",
)
@click.option(
    "--grace",
    envvar="MQTUNE_GRACE",
    type=float,
    default=10.0,
    show_default=True,
    help="Seconds that trials have to save and to end when the worker shuts down.",
)
@click.option(
    "--experiments",
    envvar="MQTUNE_EXPERIMENTS",
    default="*",
    show_default=True,
    help="The names of the experiments whose trials it runs, with * for any characters: 'team-a-*'.",
)
@click.option(
    "--remote-control/--no-remote-control",
    envvar="MQTUNE_REMOTE_CONTROL",
    default=True,
    help="Whether Celery's remote commands (inspect, terminate, shutdown) are obeyed.",
)
@click.option(
    "--user",
    envvar="MQTUNE_USER",
    default="",
    help="The user that the worker and its trials run as, if root starts it; by default the one who starts it.",
)
@click.option("--name", help="The worker's Celery node name; @host is added.")
@click.option(
    "--check",
    is_flag=True,
    help="Start nothing: exit with 0 if this machine has a worker (of this name, if one is given) in the fleet, with 1 if not.",
)
@click.option("--loglevel", default="INFO", show_default=True, help="Celery's log level.")
@click.option("--owner-fd", envvar="MQTUNE_OWNER_FD", type=int, hidden=True)
def command(
    broker: str | None,
    gpus: str,
    slots_per_gpu: int,
    gpus_per_slot: int,
    gpu_memory: str,
    cpus: int | None,
    slots: int | None,
    tags: str,
    code_root: Path | None,
    log_root: Path | None,
    grace: float,
    experiments: str,
    remote_control: bool,
    user: str,
    name: str | None,
    check: bool,
    loglevel: str,
    owner_fd: int | None,
) -> None:
    """Run trials on this machine, one in each slot.

    It is Celery's own worker: `celery inspect`, `celery control` and Flower work on it. Ctrl-C requeues its trials.
    """
    if not broker:
        raise click.UsageError(
            "--broker is missing; give the Redis that the drivers use: redis://:password@head:6379/0"
        )
    if check:
        from mqtune.cli.output import say  # noqa: PLC0415 - as below

        say(_check(broker, name))
        return
    from mqtune.worker.app import create_app  # noqa: PLC0415 - only this command needs celery, whose import takes half a second
    from mqtune.worker.settings import WorkerSettings, default_log_root  # noqa: PLC0415

    settings = WorkerSettings(
        broker=broker,
        gpus=gpus,
        slots_per_gpu=slots_per_gpu,
        gpus_per_slot=gpus_per_slot,
        cpus=cpus,
        slots=slots,
        gpu_memory=gpu_memory,
        tags=tags,
        code_root=(code_root or Path.cwd()).absolute(),
        log_root=(log_root or default_log_root(user)).absolute(),
        grace_s=grace,
        experiments=experiments,
        remote_control=remote_control,
        user=user,
        owner_fd=owner_fd,
    )
    node = f"{name or f'mqtune-{os.getpid()}'}@%h"
    sys.exit(create_app(settings).worker_main(["worker", "--hostname", node, "--loglevel", loglevel]))


def _check(broker: str, name: str | None) -> str:
    """Return how the worker of this machine stands, for a health check.

    While Redis is away it can't be seen in the fleet, and waits: whoever restarted it for that would end its trials.

    Raises:
        MqtuneError: Redis answers, and has none, or refuses the account.
    """
    from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect  # noqa: PLC0415 - as above
    from mqtune.journal.fleet import Fleet  # noqa: PLC0415

    try:
        with contextlib.closing(connect(broker, role="check")) as client:
            there = Fleet(client, patience_s=CONNECT_TIMEOUT_S).workers()
    except BrokerUnavailable as error:
        return f"it can't be seen whether the worker is in the fleet, and it waits like this: {error}"
    host = socket.gethostname()
    found = [info for info in there if info.host == host and _is_called(info.name, name)]
    if not found:
        which = f"worker {name!r}" if name else "worker"
        raise MqtuneError(f"no {which} of this machine ({host}) is in the fleet, where {len(there)} are; see its log")
    return "\n".join(
        f"{info.name}: {info.slots} slots of {info.queue}{f'; {info.note}' if info.note else ''}" for info in found
    )


def _is_called(full: str, name: str | None) -> bool:
    return name is None or name in (full, full.partition("@")[0])
