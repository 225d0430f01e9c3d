"""``mqtune fleet drain`` and ``undrain``: take workers and devices out of service, and back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from mqtune.cli.output import broker_option, json_option, print_json, say, timing_of_command
from mqtune.cli.owners import force_option
from mqtune.cli.servers import PATIENCE_S, redis_at
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.timing import Timing

if TYPE_CHECKING:
    from mqtune.core.worker_info import WorkerInfo
    from mqtune.journal.exchange.fleet import Fleet
    from mqtune.journal.server.connection import RedisClient
    from mqtune.services.ownership.audit import AuditAction


#: A name that stands for all connected workers.
_ALL: Final = "all"
_broker = broker_option("The Redis server that the workers use.", required=True)


@click.command("drain")
@click.argument("targets", nargs=-1, required=True, metavar="WORKER[:DEVICE]…")
@_broker
@force_option
@json_option
def _drain(targets: tuple[str, ...], broker: str, *, force: bool, as_json: bool) -> None:
    """Drain workers: their trials move to other workers, and they shut down.

    The command waits until they have shut down. WORKER is a name such as gpu@node7, gpu if that is unique, or all.
    Trials have the time of the worker's --grace to save a checkpoint. They continue elsewhere, and this does not count
    as a failure.

    WORKER:DEVICE, such as gpu@node7:2, drains one device. Its running trials finish, and no other trial starts on it,
    even after a restart of the worker. `mqtune fleet undrain` returns it to service.

    Draining other people's workers needs --force or an operator's account.
    """
    from mqtune.services.ownership.audit import check_owner, note  # noqa: PLC0415 - only this needs redis

    with _connected(broker) as (client, fleet, workers):
        devices = _devices_in(targets, workers)
        chosen = _workers_in(targets, workers)
        for info in chosen:
            check_owner(client, f"worker {info.name}", info.owner, doing="drain", force=force)
        _check_devices(client, devices, "disable", force=force)
        if not chosen and not devices:
            click.echo("no worker is connected", err=as_json)
        _disable(client, fleet, devices)
        report: Callable[[str], object] = (lambda _: None) if as_json else say
        for info in chosen:
            note(client, "drain", info.name)
            fleet.drain(info)
            report(
                f"{info.name} is draining: its trials save a checkpoint and are requeued, "
                f"which takes {info.leaves_within_s:.0f} s at most"
            )
        took = wait_until_gone(fleet, chosen, report, client.timing)
    if as_json:
        gone = [{"worker": name, "shut_down_after_s": seconds} for name, seconds in took.items()]
        print_json([*_described(devices, is_disabled=True), *gone])


@click.command("undrain")
@click.argument("targets", nargs=-1, required=True, metavar="WORKER:DEVICE…")
@_broker
@force_option
@json_option
def _undrain(targets: tuple[str, ...], broker: str, *, force: bool, as_json: bool) -> None:
    """Return drained devices to service, such as gpu@node7:2.

    Trials start on them again within seconds. A worker that was drained has shut down: start it by `mqtune worker`.
    """
    from mqtune.services.ownership.audit import note  # noqa: PLC0415 - as above

    if whole := [target for target in targets if ":" not in target]:
        raise click.UsageError(f"{whole[0]!r} names no device, such as {whole[0]}:0; start a drained worker again")
    with _connected(broker) as (client, fleet, workers):
        devices = _devices_in(targets, workers)
        _check_devices(client, devices, "enable", force=force)
        for info, device in devices:
            note(client, "enable", f"{info.name}:{device}")
            fleet.enable(info, device)
            click.echo(f"device {device} of {info.name} takes trials again, within seconds", err=True)
    if as_json:
        print_json(_described(devices, is_disabled=False))


@contextlib.contextmanager
def _connected(broker: str) -> Iterator[tuple[RedisClient, Fleet, list[WorkerInfo]]]:
    """Yield an operator's connection, the register of workers, and the connected workers."""
    from mqtune.journal.exchange.fleet import Fleet  # noqa: PLC0415

    with redis_at(broker, timing=timing_of_command(), role="operator") as client:
        fleet = Fleet(client, patience_s=PATIENCE_S)
        yield client, fleet, fleet.workers()


def _workers_in(targets: Sequence[str], connected: list[WorkerInfo]) -> list[WorkerInfo]:
    """Return the workers among the targets (not the devices), each once.

    Raises:
        ConfigurationError: a worker is not connected, or its name is not unique.
    """
    chosen = [find_worker(target, connected) for target in targets if ":" not in target and target != _ALL]
    return connected if _ALL in targets else list({info.name: info for info in chosen}.values())


def _devices_in(targets: Sequence[str], connected: list[WorkerInfo]) -> list[tuple[WorkerInfo, str]]:
    """Return the devices among the targets, with their workers."""
    devices = []
    for worker, _, device in (target.rpartition(":") for target in targets if ":" in target):
        info = find_worker(worker, connected)
        if device not in (known := info.gpu_names):
            own = f"it has {', '.join(dict.fromkeys(known))}" if known else "it has no GPUs: drain the worker"
            raise ConfigurationError(f"worker {info.name} has no device {device!r}; {own}")
        devices.append((info, device))
    return devices


def _check_devices(
    client: RedisClient, devices: Sequence[tuple[WorkerInfo, str]], action: AuditAction, *, force: bool
) -> None:
    from mqtune.services.ownership.audit import check_owner  # noqa: PLC0415 - as above

    for info, device in devices:
        check_owner(client, f"worker {info.name}", info.owner, doing=f"{action} device {device}", force=force)


def _disable(client: RedisClient, fleet: Fleet, devices: Sequence[tuple[WorkerInfo, str]]) -> None:
    from mqtune.journal.server.owner import person  # noqa: PLC0415 - as above
    from mqtune.services.ownership.audit import note  # noqa: PLC0415 - as above

    for info, device in devices:
        note(client, "disable", f"{info.name}:{device}")
        fleet.disable(info, device, str(person(client)))
        click.echo(f"device {device} of {info.name} takes no further trial; its running trials finish", err=True)


def _described(devices: Sequence[tuple[WorkerInfo, str]], *, is_disabled: bool) -> list[dict[str, object]]:
    return [{"worker": info.name, "device": device, "disabled": is_disabled} for info, device in devices]


def find_worker(name: str, connected: list[WorkerInfo]) -> WorkerInfo:
    """Return the worker of this name. The part from the @ on may be left out.

    Raises:
        ConfigurationError: the worker is not connected, or the name is not unique.
    """
    matching = [info for info in connected if info.name == name] or [
        info for info in connected if info.name.partition("@")[0] == name
    ]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(info.name for info in matching or connected)
    if matching:
        raise ConfigurationError(f"{name!r} is the name of {len(matching)} workers: {names}; give the full name of one")
    raise ConfigurationError(
        f"no worker {name!r} is connected; {f'connected are {names}' if names else 'there are no workers'}"
    )


def wait_until_gone(
    fleet: Fleet, drained: list[WorkerInfo], report: Callable[[str], object] = say, timing: Timing = Timing()
) -> dict[str, float]:
    """Wait until workers have shut down. Return the seconds that each took, by name.

    Args:
        report: called with a sentence for each worker that has shut down.
        timing: the polling interval, and the time that a worker may take beyond its own limit.

    Raises:
        MqtuneError: a worker has not shut down in time.
    """
    began = time.monotonic()
    left = {(info.name, info.joined_at): info for info in drained}
    took: dict[str, float] = {}
    while left:
        here = {(info.name, info.joined_at) for info in fleet.workers()}
        waited_s = time.monotonic() - began
        for key in [key for key in left if key not in here]:
            took[left.pop(key).name] = waited_s
            report(f"{key[0]} has shut down after {waited_s:.0f} s")
        late = [info.name for info in left.values() if waited_s > info.leaves_within_s + timing.drain_register_s]
        if late:
            raise MqtuneError(
                f"workers still connected after {waited_s:.0f} s: {', '.join(late)}; see their logs, or kill them on "
                "their machines: their trials are requeued when their leases expire"
            )
        if left:
            # A worker that shuts down sends no message, so the register is polled.
            time.sleep(timing.drain_look_s)
    return took


COMMANDS: Final = {"drain": _drain, "undrain": _undrain}
