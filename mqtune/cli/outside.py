"""``mqtune ask`` and ``tell``: for trials that people evaluate themselves, without a worker."""

from __future__ import annotations

from functools import partial
from typing import Final

import click

from mqtune.cli.place import find_trial, name_argument
from mqtune.cli.steer import RequestOptions, ask, config_option, experiment_of, request_options, tell
from mqtune.cli.terms import config_of
from mqtune.core.trial import Config
from mqtune.results.results import json_text

_tags = click.option("--tag", "tags", multiple=True, metavar="TAG", help="Tag a new trial; may be repeated.")
_notes = click.option("--notes", default="", metavar="TEXT", help="Notes of a new trial.")


@click.command("ask")
@name_argument
@config_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Mark the trial as FAILED if its result is not reported within this time. By default there is no limit.",
)
@_tags
@_notes
@click.option("--key", default="", help="Your own name for the trial. The same key again returns the same trial.")
@request_options
def _ask(
    name: str,
    configs: tuple[str, ...],
    timeout_s: float | None,
    tags: tuple[str, ...],
    notes: str,
    key: str,
    options: RequestOptions,
) -> None:
    """Get a config to evaluate yourself: the searcher's next one, or your own.

    The new trial's id and config are printed. Report its result by `mqtune tell`, or give it up by `mqtune stop`. Until
    then the experiment does not finish.
    """
    config, wait_s = config_of(configs) or None, options.wait_s
    with options.handle_of(name) as handle:
        request = partial(handle.ask, config, timeout_s=timeout_s, tags=tags, notes=notes, key=key, wait_s=wait_s)
        outcome = ask("ask", "", request)
        if outcome.done:
            outcome = outcome._replace(reason=json_text(outcome.config))
        tell(handle.name, [outcome], as_json=options.as_json)


@click.command("tell")
@name_argument
@click.argument("told", nargs=-1, required=True, metavar="[TRIAL] METRIC=VALUE…")
@config_option
@click.option("--intermediate", is_flag=True, help="An intermediate report, not the final result.")
@_tags
@_notes
@click.option("--key", default="", help="Your own name for a new trial. Reporting the same key again has no effect.")
@request_options
def _tell(
    name: str,
    told: tuple[str, ...],
    configs: tuple[str, ...],
    tags: tuple[str, ...],
    notes: str,
    key: str,
    options: RequestOptions,
    *,
    intermediate: bool,
) -> None:
    """Report the result of a trial that you evaluated yourself, or of any --config.

    TRIAL is the id that `mqtune ask` printed. Write metrics as loss=0.3,training_iteration=9 or as a JSON object. After
    the report, the trial is COMPLETED.
    """
    first, *rest = told
    is_trial = "=" not in first and not first.lstrip().startswith("{")
    if is_trial == bool(configs) and not (key and not is_trial):
        raise click.UsageError("give either TRIAL or the --config of a new trial")
    metrics = config_of(rest if is_trial else told)
    ends, wait_s = not intermediate, options.wait_s
    with options.handle_of(name) as handle:
        target: str | Config = find_trial(experiment_of(handle), first) if is_trial else config_of(configs)
        request = partial(handle.tell, target, metrics, ends=ends, tags=tags, notes=notes, key=key, wait_s=wait_s)
        tell(handle.name, [ask("tell", "", request)], as_json=options.as_json)


COMMANDS: Final = {"ask": _ask, "tell": _tell}
