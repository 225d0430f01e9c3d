"""``mqtune code``: shows the code that the driver sent to its workers."""

from __future__ import annotations

from pathlib import Path

import click

from mqtune.cli.output import broker_option, json_option, print_json, print_table, say
from mqtune.cli.place import Place, complete_trial, find_place, find_trial, name_argument, opened
from mqtune.cli.servers import PATIENCE_S, redis_at
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.text import printable
from mqtune.results.results import Results
from mqtune.trainable.bundle import Bundle, File, is_digest, unpack


@click.command("code")
@name_argument
@click.argument("trial", required=False, shell_complete=complete_trial)
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), help="Write the files to this new folder.")
@broker_option("The Redis server that has the experiment, unless it is on this machine.")
@json_option
def command(name: str, trial: str | None, folder: Path | None, broker: str | None, *, as_json: bool) -> None:
    """List the files of code that the driver sent to its workers, or write them to a folder.

    A driver sends code if Process(bundle=…) says so. The files are those of TRIAL's last attempt, or of the attempt of
    any trial that started last. Reading them from a broker needs a driver's or worker's account.
    """
    place = find_place(name, broker)
    with opened(place) as view:
        digest = _digest_of(view.results, trial)
    files = find_files(place, digest)
    if folder is not None:
        _write(files, folder)
    if as_json:
        print_json({"bundle": digest, "files": {path: len(file.content) for path, file in files.items()}})
    elif folder is not None:
        click.echo(f"{len(files)} files of bundle {digest[:12]} are in {folder}")
    else:
        say(f"bundle {digest}")
        print_table(("bytes", "file"), ([str(len(file.content)), printable(path)] for path, file in files.items()))


def _digest_of(results: Results, trial: str | None) -> str:
    """Return the digest of the bundle that the last started attempt ran."""
    trials = results.experiment.trials
    chosen = list(trials.values()) if trial is None else [trials[find_trial(results.experiment, trial)]]
    ran = sorted(
        (attempt for ran_trial in chosen for attempt in ran_trial.attempts),
        key=lambda attempt: attempt.started_at or 0.0,
    )
    digest = ran[-1].environment.get("bundle") if ran else results.definition.get("bundle")
    if not is_digest(digest):
        subject = f"experiment {results.name!r}" if trial is None else f"trial {trial} of experiment {results.name!r}"
        raise ConfigurationError(
            f"{subject} ran code that was already on its workers; with Process(bundle='.') the driver sends it"
        )
    return str(digest)


def find_files(place: Place, digest: str) -> dict[str, File]:
    """Return a bundle's files by path, from the experiment's folder or its broker.

    Raises:
        ConfigurationError: neither has the bundle.
        AccessDenied: the account may not read code.
        CodeRefused: the bundle is invalid.
    """
    bundle = _read_bundle(place, digest)
    if bundle is None:
        raise ConfigurationError(
            f"bundle {digest[:12]} is neither in the experiment's folder here nor on the broker; run this on the "
            "machine where the experiment was driven"
        )
    return bundle.files()


def _read_bundle(place: Place, digest: str) -> Bundle | None:
    from mqtune.driver.setup.bundling import BundleFolder  # noqa: PLC0415 - --help needs none of it
    from mqtune.journal.exchange.code import CodeExchange  # noqa: PLC0415

    if place.folder is not None and (bundle := BundleFolder(place.folder).find(digest)) is not None:
        return bundle
    if not place.broker:
        return None
    with redis_at(place.broker) as client:
        return CodeExchange(client, place.name, patience_s=PATIENCE_S).bundle(digest)


def _write(files: dict[str, File], folder: Path) -> None:
    try:
        if folder.is_dir():
            folder.rmdir()
        unpack(files, folder)
    except OSError as error:
        raise MqtuneError(
            f"the files can't be written to {folder}: {error}; give a new folder, or an empty one"
        ) from None
