"""The verbs for trials evaluated outside, without a worker."""

from __future__ import annotations

from functools import partial
from typing import Final

import click

from mqtune.cli.output import broker_option, json_option
from mqtune.cli.owners import force_option
from mqtune.cli.place import find_place, find_trial, name_argument, steered
from mqtune.cli.steer import ask, config_option, experiment_of, tell, wait_option
from mqtune.cli.terms import config_of
from mqtune.core.trial import Config
from mqtune.results.results import json_text

_broker = broker_option("The Redis server that has the experiment. Not needed for one that runs on this machine alone.")
_tags = click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag of a new trial; may be repeated.")
_notes = click.option("--notes", default="", metavar="TEXT", help="What there is to say about a new trial.")


@click.command("ask")
@name_argument
@config_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Within how long its result is to be told; after that it is FAILED. By default there is no such time.",
)
@_tags
@_notes
@click.option("--key", default="", help="A name of your own for it; asking again gives the same trial.")
@wait_option
@force_option
@_broker
@json_option
def _ask(
    name: str,
    broker: str | None,
    configs: tuple[str, ...],
    timeout_s: float | None,
    wait_s: float,
    *,
    force: bool,
    as_json: bool,
    tags: tuple[str, ...],
    notes: str,
    key: str,
) -> None:
    """Begin a trial that you evaluate outside, with the searcher's next config or your own.

    The answer has the trial and its config; mqtune tell takes its result. The experiment waits until the trial is
    ended: mqtune stop NAME TRIAL.
    """
    with steered(find_place(name, broker), force=force) as handle:
        request = partial(
            handle.ask,
            config_of(configs) or None,
            timeout_s=timeout_s,
            tags=tags,
            notes=notes,
            key=key,
            wait_s=wait_s,
        )
        outcome = ask("ask", "", request)
        if outcome.done:
            outcome = outcome._replace(reason=json_text(outcome.config))
        tell(handle.name, [outcome], as_json=as_json)


@click.command("tell")
@name_argument
@click.argument("told", nargs=-1, required=True, metavar="[TRIAL] METRIC=VALUE…")
@config_option
@click.option("--goes-on", is_flag=True, help="It is a report on the way, and not the last one.")
@_tags
@_notes
@click.option("--key", default="", help="A name of your own for a new trial; telling it again changes nothing.")
@wait_option
@force_option
@_broker
@json_option
def _tell(
    name: str,
    broker: str | None,
    told: tuple[str, ...],
    configs: tuple[str, ...],
    wait_s: float,
    *,
    goes_on: bool,
    force: bool,
    as_json: bool,
    tags: tuple[str, ...],
    notes: str,
    key: str,
) -> None:
    """Tell an outside result: of an asked trial, or, with --config, of any config.

    Metrics are loss=0.3,training_iteration=9, or a JSON object. With the last report the trial is COMPLETED.
    """
    first, *rest = told
    is_trial = "=" not in first and not first.lstrip().startswith("{")
    if is_trial == bool(configs) and not (key and not is_trial):
        raise click.UsageError("name the trial whose result it is, or give the --config of a new one")
    metrics = config_of(rest if is_trial else told)
    with steered(find_place(name, broker), force=force) as handle:
        which: str | Config = find_trial(experiment_of(handle), first) if is_trial else config_of(configs)
        request = partial(handle.tell, which, metrics, ends=not goes_on, tags=tags, notes=notes, key=key, wait_s=wait_s)
        tell(handle.name, [ask("tell", "", request)], as_json=as_json)


COMMANDS: Final = {"ask": _ask, "tell": _tell}
