"""``mqtune submit``: runs a tuning script on a worker."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from mqtune.cli.logs import print_output
from mqtune.cli.output import broker_option, json_option, print_json, say
from mqtune.cli.servers import PATIENCE_S, redis_at
from mqtune.core.errors import AccessDenied, ConfigurationError, InsufficientResources
from mqtune.core.keys import is_name
from mqtune.core.machine import INTERRUPTED_CODE, mqtune_home
from mqtune.core.owner import NOBODY, this_owner
from mqtune.core.resources import serves
from mqtune.core.submission import DRIVER, Submission, SubmittedRun
from mqtune.core.text import printable
from mqtune.core.version import meets
from mqtune.results.experiments import script_in_words

if TYPE_CHECKING:
    from collections.abc import Collection

    from mqtune.cli.place import Place
    from mqtune.core.worker_info import WorkerInfo
    from mqtune.services.submissions.board import SubmissionState

_SHOWN: Final = 4


@click.command("submit")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT…]")
@click.option(
    "--name",
    help="Name of the submission, and of its experiment unless the script sets another; by default the script's name "
    "and a number.",
)
@click.option(
    "--bundle",
    "folder",
    type=click.Path(path_type=Path),
    default=".",
    show_default=True,
    help="Folder of your project. It is sent along, contains the script, and is the script's current folder.",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Print the script's output until it has ended, and exit with its code. Ctrl-C only stops printing.",
)
@click.option("--local", is_flag=True, help="Run the script on this machine instead, like `python SCRIPT`.")
@broker_option("The Redis server that the workers use; it takes a driver's account.")
@json_option
def command(
    script: Path,
    arguments: tuple[str, ...],
    name: str | None,
    folder: Path,
    broker: str | None,
    *,
    follow: bool,
    local: bool,
    as_json: bool,
) -> None:
    """Run SCRIPT on a worker with driver slots (`mqtune worker --drivers N`).

    You can then turn this machine off. If the worker's machine dies, another worker runs the script again, and the
    experiment continues. The code is signed with $MQTUNE_CODE_KEY. The script's own arguments come last:
    `mqtune submit tune.py --name sweep -- --epochs 5`.
    """
    if name is not None and not is_name(name):
        raise ConfigurationError(
            f"--name {name!r} can't be an experiment's name; use up to 100 letters, digits, dots, dashes and "
            "underscores"
        )
    if not script.is_file():
        raise ConfigurationError(f"script {script} does not exist; give its path")
    if local:
        _run_here(name, script, arguments, broker)
    if not broker:
        raise click.UsageError(
            "--broker URL or $MQTUNE_BROKER is missing; to run the script on this machine, give --local"
        )
    submission = _submit(name, script, arguments, folder, broker)
    name = submission.name
    if as_json:
        print_json({"name": name, "script": submission.script, "bundle": submission.bundle})
    else:
        say(f"{name} is submitted: a worker with a driver slot will run it, and you can turn this machine off")
        say(f"its output: mqtune logs {name} {DRIVER} -f; its trials: mqtune show {name} --follow")
    if follow:
        _follow(name, broker)


def _run_here(name: str | None, script: Path, arguments: tuple[str, ...], broker: str | None) -> NoReturn:
    """Replace this process by the script. A name is passed to it as to a submitted script."""
    given = {"MQTUNE_BROKER": broker} if broker else {}
    named = SubmittedRun(name, is_first=True, owner=NOBODY).variables() if name else {}
    sys.stdout.flush()
    command = [sys.executable, str(script), *arguments]
    os.execve(sys.executable, command, {**os.environ, **given, **named})  # noqa: S606 - no shell is used


def _submit(name: str | None, script: Path, arguments: tuple[str, ...], folder: Path, broker: str) -> Submission:
    from mqtune.driver.setup.default_names import as_stem, release_folder, take_name  # noqa: PLC0415 - only this needs redis
    from mqtune.journal.exchange.fleet import Fleet  # noqa: PLC0415
    from mqtune.journal.server.clock import ServerClock  # noqa: PLC0415
    from mqtune.journal.server.connection import account_of  # noqa: PLC0415
    from mqtune.services.code.project import packed  # noqa: PLC0415
    from mqtune.services.ownership.audit import note  # noqa: PLC0415
    from mqtune.services.submissions.board import Submissions  # noqa: PLC0415
    from mqtune.trainable.bundle import KEY_VARIABLE, Bundle, check_key  # noqa: PLC0415

    folder, script = (Path(os.path.abspath(given)) for given in (folder, script))
    if folder not in script.parents:
        raise ConfigurationError(f"{script} is not in --bundle {folder}; give the folder of your project")
    if script.suffix != ".py":
        raise ConfigurationError(f"{script.name} is not a Python script: its name does not end with .py")
    key = os.environ.get(KEY_VARIABLE, "")
    check_key(key, "mqtune submit")
    files = packed(folder, folder, [home] if folder in (home := mqtune_home()).parents else ())
    path = script.relative_to(folder).as_posix()
    if path not in files:
        raise ConfigurationError(f"--bundle {folder} leaves out {path}: git or .mqtuneignore ignores it")
    bundle = Bundle.of(files)
    with redis_at(broker, role="driver") as client:
        if name is None:
            name = take_name(as_stem(script.stem), client)
            # The experiment's folder is needed only on the machine that runs the script.
            release_folder(mqtune_home() / name)
        refuse_without_slots(name, Fleet(client, patience_s=PATIENCE_S).workers())
        owner, at = this_owner(account_of(client)), ServerClock(client).time()
        submission = Submission(name, path, arguments, bundle.digest, owner, at)
        note(client, "submit", name, f"{path}, code {bundle.digest}")
        Submissions(client, patience_s=PATIENCE_S).submit(submission, bundle, key)
    return submission


def refuse_without_slots(name: str, workers: Collection[WorkerInfo]) -> None:
    """Check that a connected worker may run this submission.

    Raises:
        InsufficientResources: no connected worker has driver slots for this name.
    """
    if problem := why_no_driver_slot(name, workers):
        raise InsufficientResources(f"{problem}; start one: mqtune worker --drivers 4")


def why_no_driver_slot(name: str, workers: Collection[WorkerInfo]) -> str:
    """Return why no worker may run a submission of this name. It is empty if one may."""
    offering = [info for info in workers if info.drivers and meets(info.version)]
    if any(serves(info.experiments, name) for info in offering):
        return ""
    only = f", only to {' and '.join(sorted({info.experiments for info in offering}))}" if offering else ""
    refused = [
        (info.name, impairment.reason)
        for info in workers
        for impairment in info.impairments
        if impairment.kind == "account"
    ]
    notes = "".join(f"; {worker}: {reason}" for worker, reason in refused[:_SHOWN])
    return f"no worker of this fleet offers driver slots to {name!r}{only}{notes}"


def _follow(name: str, broker: str) -> None:
    """Print a submission's output until it has ended, and exit with its code."""
    from mqtune.results.logs import follow_driver  # noqa: PLC0415 - as above

    try:
        print_output(follow_driver(name, broker))
    except KeyboardInterrupt:
        click.echo(
            f"\n{name} continues; its output: mqtune logs {name} {DRIVER} -f; to end it: mqtune end {name}", err=True
        )
        sys.exit(INTERRUPTED_CODE)
    state = state_on(name, broker)
    if state is not None and state.how != "done":
        click.echo(printable(f"mqtune: {name}: {script_in_words(state)}"), err=True)
        sys.exit(state.code if state.code and state.code > 0 else 1)


def submission_of(place: Place) -> SubmissionState | None:
    """Return the state of an experiment's submission. None if it is missing or may not be read."""
    return None if place.own_folder is not None or not place.broker else state_on(place.name, place.broker)


def state_on(name: str, url: str) -> SubmissionState | None:
    """Return a submission's state on a server. None if it does not exist, or may not be read."""
    from mqtune.services.submissions.board import Submissions  # noqa: PLC0415

    with contextlib.suppress(AccessDenied), redis_at(url) as client:
        return Submissions(client, patience_s=PATIENCE_S).state(name)
    return None
