"""``mqtune label``: changes tags and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from mqtune.cli.place import Place, complete_trial, find_place, find_trial, name_argument, server_of, steered
from mqtune.cli.steer import Outcome, RequestOptions, ask, experiment_of, request_options, tell
from mqtune.core.errors import AccessDenied, NameTaken
from mqtune.core.labels import NO_LABELS
from mqtune.core.trial import TrialId
from mqtune.results.labelling import is_in_folder_alone, label
from mqtune.results.results import Results

if TYPE_CHECKING:
    from pathlib import Path

    from mqtune.client import ExperimentHandle
    from mqtune.core.codec import Body
    from mqtune.core.experiment import Experiment


@click.command("label")
@name_argument
@click.argument("trials", nargs=-1, metavar="[TRIAL]…", shell_complete=complete_trial)
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Add this tag; may be repeated.")
@click.option("--untag", "untags", multiple=True, metavar="TAG", help="Remove this tag; may be repeated.")
@click.option("--note", default="", metavar="TEXT", help="Add a line to the notes.")
@click.option("--notes", metavar="TEXT", help="Replace the notes. An empty text removes them.")
@request_options
def command(
    name: str,
    trials: tuple[str, ...],
    tags: tuple[str, ...],
    untags: tuple[str, ...],
    note: str,
    notes: str | None,
    options: RequestOptions,
) -> None:
    """Add or remove tags and notes of an experiment, or of some of its trials.

    They apply immediately, even without a driver. Find experiments by `mqtune list --tag TAG`, and trials by
    `mqtune show NAME --tag TAG`.
    """
    given, place = _labels(tags, untags, note, notes), find_place(name, options.broker)
    outcomes = label_chosen(place, trials, given, options.wait_s, force=options.force)
    tell(place.name, outcomes, as_json=options.as_json)


def label_chosen(
    place: Place, trials: Sequence[str], given: Body, wait_s: float, *, force: bool = False
) -> Iterator[Outcome]:
    """Label trials, or the experiment itself, and yield each request's outcome.

    Args:
        trials: ids, whole or shortened. If empty, the experiment is labelled.
        given: the arguments of the request ``label``.
        force: whether to label somebody else's experiment.

    Raises:
        ConfigurationError: a label or trial is invalid, or the experiment belongs to somebody else.
        MqtuneError: the account may not do it, or the broker does not answer.
    """
    NO_LABELS.after(given)
    if place.folder is not None and is_in_folder_alone(place.folder):
        for trial in _chosen(Results.load(place.folder).experiment, trials):
            label(place.folder, trial, given)
            yield Outcome("label", trial, done=True)
        return
    with steered(place, force=force) as handle, server_of(place) as url:
        chosen = _chosen(experiment_of(handle), trials) if trials else [TrialId("")]
        yield from _request_labels(handle, url, place.folder, chosen, given, wait_s)


def _labels(tags: tuple[str, ...], untags: tuple[str, ...], note: str, notes: str | None) -> Body:
    """Return the options as arguments of the request ``label``."""
    lists: Body = {"tags": list(tags), "untag": list(untags), "note": note}
    given = {key: value for key, value in lists.items() if value}
    if notes is not None:
        given["notes"] = notes
    if not given:
        raise click.UsageError("give --tag, --untag, --note or --notes")
    return given


def _chosen(experiment: Experiment, trials: Sequence[str]) -> list[TrialId]:
    """Return the ids of these trials, each once. Without trials, return one empty id."""
    return list(dict.fromkeys(find_trial(experiment, trial) for trial in trials)) or [TrialId("")]


def _request_labels(
    handle: ExperimentHandle, url: str, folder: Path | None, trials: list[TrialId], given: Body, wait_s: float
) -> Iterator[Outcome]:
    for trial in trials:
        target = handle.trial(trial) if trial else handle
        outcome = ask("label", trial, partial(target.label, **given, wait_s=wait_s))
        if not outcome.done and not outcome.refused:
            outcome = _without_driver(handle, url, folder, outcome)
        yield outcome


def _without_driver(handle: ExperimentHandle, url: str, folder: Path | None, outcome: Outcome) -> Outcome:
    """Return the outcome of a request that no driver has answered.

    Labels are applied as soon as the request is in the journal.
    """
    experiment = experiment_of(handle)
    if folder is not None:
        _complete_copy(handle.name, url, folder)
    return outcome._replace(done=True, reason="") if outcome.request in experiment.carried_out else outcome


def _complete_copy(name: str, url: str, folder: Path) -> None:
    """Add new entries to this machine's copy of the journal. Report it if that is not possible."""
    from mqtune.services.upkeep.archiving import complete_copy  # noqa: PLC0415 - only this needs redis
    from mqtune.services.upkeep.deletion import undriven  # noqa: PLC0415

    try:
        with undriven(name, url) as journal:
            complete_copy(journal, folder)
    except (AccessDenied, NameTaken) as error:
        click.echo(f"{folder} is updated only when a driver continues the experiment: {error}", err=True)
