"""``mqtune drain``: drains workers and waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from mqtune.cli.output import broker_option, json_option, print_json, say, timing_of_command
from mqtune.cli.owners import force_option
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.timing import Timing

if TYPE_CHECKING:
    from mqtune.core.events import WorkerInfo
    from mqtune.journal.connection import RedisClient
    from mqtune.journal.fleet import Fleet
    from mqtune.services.ownership.audit import AuditAction


@click.command("drain")
@click.argument("workers", nargs=-1, metavar="WORKER…")
@broker_option("The Redis server that the workers use.", required=True)
@click.option("--all", "everyone", is_flag=True, help="Drain all connected workers.")
@click.option("--undo", is_flag=True, help="Start trials on these devices again.")
@force_option
@json_option
def command(workers: tuple[str, ...], broker: str, everyone: bool, *, undo: bool, force: bool, as_json: bool) -> None:
    """Drain workers: they requeue their trials and shut down. Returns when they have shut down.

    WORKER:DEVICE, such as gpu@node7:2, drains one device: no trial starts there until --undo, even after a restart.
    Running trials continue.

    WORKER is a name such as gpu@node7, or gpu if unique. Trials have the worker's --grace to save a checkpoint, and
    continue on other workers, without counting a failure. Others' workers need --force or an operator's account.
    """
    from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect  # noqa: PLC0415 - only this needs redis
    from mqtune.journal.fleet import Fleet  # noqa: PLC0415
    from mqtune.services.ownership.audit import check_owner, note  # noqa: PLC0415

    if everyone == bool(workers):
        raise click.UsageError("name the workers to drain, or give --all")
    devices = [name for name in workers if ":" in name]
    if devices and len(devices) < len(workers):
        raise click.UsageError("drain workers or devices, not both at once")
    if undo and not devices:
        raise click.UsageError("--undo is for devices, such as gpu@node7:2; start a worker that was drained again")
    client = connect(broker, timing=timing_of_command(), role="operator")
    try:
        fleet = Fleet(client, patience_s=CONNECT_TIMEOUT_S)
        connected = fleet.workers()
        if devices:
            found = [
                (find_worker(worker, connected), device)
                for worker, _, device in (each.rpartition(":") for each in devices)
            ]
            _drain_devices(fleet, found, client, undo=undo, force=force)
            if as_json:
                print_json([{"worker": info.name, "device": device, "disabled": not undo} for info, device in found])
            return
        chosen = connected if everyone else [find_worker(name, connected) for name in workers]
        tell = _tell_nothing if as_json else say
        if not chosen:
            click.echo("no worker is connected", err=as_json)
        for info in chosen:
            check_owner(client, f"worker {info.name}", info.owner, doing="drain", force=force)
        for info in chosen:
            note(client, "drain", info.name)
            fleet.drain(info)
            tell(
                f"{info.name} is draining: its trials save a checkpoint and are requeued, "
                f"which takes {info.leaves_within_s:.0f} s at most"
            )
        took = wait_until_gone(fleet, chosen, tell, client.timing)
        if as_json:
            print_json([{"worker": name, "shut_down_after_s": seconds} for name, seconds in took.items()])
    finally:
        client.close()


def _drain_devices(
    fleet: Fleet, found: Sequence[tuple[WorkerInfo, str]], client: RedisClient, *, undo: bool, force: bool
) -> None:
    """Stop or resume starting trials on devices.

    Raises:
        ConfigurationError: a worker lacks the device, or is another's; nothing was done.
    """
    from mqtune.journal.owner import person  # noqa: PLC0415 - as above
    from mqtune.services.ownership.audit import check_owner, note  # noqa: PLC0415

    action: AuditAction = "enable" if undo else "disable"
    for info, device in found:
        known = info.gpu_names
        if device not in known:
            there = f"it has {', '.join(dict.fromkeys(known))}" if known else "it has none: drain the worker"
            raise ConfigurationError(f"worker {info.name} has no device {device!r}; {there}")
        check_owner(client, f"worker {info.name}", info.owner, doing=f"{action} device {device}", force=force)
    for info, device in found:
        note(client, action, f"{info.name}:{device}")
        if undo:
            fleet.enable(info, device)
            click.echo(f"device {device} of {info.name} takes trials again, within seconds", err=True)
        else:
            fleet.disable(info, device, str(person(client)))
            what = "takes no further trial; those that run there go on to their end"
            click.echo(f"device {device} of {info.name} {what}", err=True)


def find_worker(name: str, connected: list[WorkerInfo]) -> WorkerInfo:
    """Return the worker of this name, with or without the part after the @.

    Raises:
        ConfigurationError: it is missing or not unique.
    """
    found = [info for info in connected if info.name == name] or [
        info for info in connected if info.name.partition("@")[0] == name
    ]
    if len(found) == 1:
        return found[0]
    names = ", ".join(info.name for info in found or connected)
    if found:
        raise ConfigurationError(f"{name!r} is the name of {len(found)} workers: {names}; give the full name of one")
    raise ConfigurationError(f"no worker {name!r} is connected; {f'there are: {names}' if names else 'there are none'}")


def _tell_nothing(_: str) -> None:
    pass


def wait_until_gone(
    fleet: Fleet, told: list[WorkerInfo], tell: Callable[[str], object] = say, timing: Timing = Timing()
) -> dict[str, float]:
    """Wait until workers have shut down. Return the seconds that each took, by name.

    Args:
        fleet: the register.
        told: the workers.
        tell: gets a sentence about each worker that has shut down.
        timing: the polling interval, and the time limit after a worker's own.

    Raises:
        MqtuneError: one has not shut down in time.
    """
    began = time.monotonic()
    left = {(info.name, info.joined_at): info for info in told}
    took: dict[str, float] = {}
    while left:
        here = {(info.name, info.joined_at) for info in fleet.workers()}
        waited_s = time.monotonic() - began
        for key in [key for key in left if key not in here]:
            took[left.pop(key).name] = waited_s
            tell(f"{key[0]} has shut down after {waited_s:.0f} s")
        late = [info.name for info in left.values() if waited_s > info.leaves_within_s + timing.drain_register_s]
        if late:
            raise MqtuneError(
                f"workers still connected after {waited_s:.0f} s: {', '.join(late)}; look at their logs, or kill them on "
                "their machines: their trials are requeued when their leases expire"
            )
        if left:
            # No message announces an exit.
            time.sleep(timing.drain_look_s)
    return took
