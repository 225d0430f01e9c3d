"""``mqtune tag`` and ``mqtune note``: what people say about an experiment or a trial, in force without a driver too."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import click

from mqtune.cli.output import broker_option, json_option
from mqtune.cli.place import complete_trial, find_place, find_trial, name_argument, server_of, steered
from mqtune.cli.steer import Outcome, asked, experiment_of, tell, timeout_option
from mqtune.core.errors import AccessDenied, NameTaken
from mqtune.core.trial import NO_LABELS
from mqtune.results.labelling import is_in_folder_alone, label
from mqtune.results.results import Results

if TYPE_CHECKING:
    from pathlib import Path

    from mqtune.client import ExperimentHandle
    from mqtune.core.codec import Body

_broker = broker_option("The Redis server that has the experiment. Not needed for one that runs on this machine alone.")
#: An experiment's name and a text; or a trial between them.
_TEXT_ALONE: Final = 1


@click.command("tag")
@name_argument
@click.argument("tags", nargs=-1, required=True, metavar="TAG…")
@click.option("--trial", metavar="ID", shell_complete=complete_trial, help="Tag this trial rather than the experiment.")
@click.option("--remove", is_flag=True, help="Take the tags away.")
@timeout_option
@_broker
@json_option
def _tag(
    name: str,
    tags: tuple[str, ...],
    trial: str | None,
    broker: str | None,
    timeout_s: float,
    *,
    remove: bool,
    as_json: bool,
) -> None:
    """Give an experiment, or one of its trials, tags by which it is found: mqtune list --tag TAG."""
    first, *others = tags
    if trial is None and others and first.isdecimal():
        # Other verbs take the trial there.
        raise click.UsageError(
            f"{first} looks like a trial, which has an option here: --trial {first} {' '.join(others)}"
        )
    given: dict[str, object] = {"untag" if remove else "tags": list(tags)}
    _label(name, broker, trial, "untag" if remove else "tag", given, timeout_s, as_json=as_json)


@click.command("note")
@name_argument
@click.argument("words", nargs=-1, required=True, metavar="[TRIAL] TEXT", shell_complete=complete_trial)
@click.option(
    "--replace", is_flag=True, help="Have TEXT in place of the notes that are there; an empty one removes them."
)
@timeout_option
@_broker
@json_option
def _note(
    name: str, words: tuple[str, ...], broker: str | None, timeout_s: float, *, replace: bool, as_json: bool
) -> None:
    """Note something about an experiment, or one of its trials: a line below what is noted already."""
    *trial, text = words
    if len(trial) > _TEXT_ALONE:
        raise click.UsageError("put the text in quotes: mqtune note NAME [TRIAL] 'lr too high'")
    if not text and not replace:
        raise click.UsageError("the text is empty; with --replace it removes the notes")
    given: dict[str, object] = {"notes" if replace else "note": text}
    _label(name, broker, trial[0] if trial else None, "note", given, timeout_s, as_json=as_json)


def _label(
    name: str,
    broker: str | None,
    trial: str | None,
    action: str,
    given: Body,
    timeout_s: float,
    *,
    as_json: bool,
) -> None:
    # What is wrong by itself need not wait for a driver to refuse it.
    NO_LABELS.after(given)
    place = find_place(name, broker)
    if place.folder is not None and is_in_folder_alone(place.folder):
        found = "" if trial is None else find_trial(Results.load(place.folder).experiment, trial)
        label(place.folder, found, given)
        tell(place.name, [Outcome(action, found, done=True)], as_json=as_json)
        return
    with steered(place) as handle, server_of(place) as url:
        found = "" if trial is None else find_trial(experiment_of(handle), trial)
        target = handle.trial(found) if found else handle
        outcome = asked(action, found, partial(target.label, **given, timeout_s=timeout_s))
        if not outcome.done and not outcome.refused:
            outcome = _without_driver(handle, url, place.folder, outcome)
    tell(place.name, [outcome], as_json=as_json)


def _without_driver(handle: ExperimentHandle, url: str, folder: Path | None, outcome: Outcome) -> Outcome:
    """Return what has become of a request that no driver has answered: the journal has it, and who reads that."""
    experiment = experiment_of(handle)
    if folder is not None:
        _complete_copy(handle.name, url, folder)
    return outcome._replace(done=True, reason="") if outcome.request in experiment.carried_out else outcome


def _complete_copy(name: str, url: str, folder: Path) -> None:
    """Have the copy on this machine hold what has come since its driver ended, as the next driver would."""
    from mqtune.driver.archiving import complete_copy  # noqa: PLC0415 - only this needs redis
    from mqtune.driver.deletion import undriven  # noqa: PLC0415

    try:
        with undriven(name, url) as journal:
            complete_copy(journal, folder)
    except (AccessDenied, NameTaken) as error:
        click.echo(f"{folder} has it once a driver has gone on: {error}", err=True)


COMMANDS: Final = {"tag": _tag, "note": _note}
