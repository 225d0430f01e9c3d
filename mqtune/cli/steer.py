"""The verbs that control an experiment or its trials: they send requests to the driver."""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from mqtune.cli.conditions import Condition, condition_of, selected
from mqtune.cli.output import broker_option, is_confirmed, json_option, print_json, say
from mqtune.cli.owners import check_owner, force_option, note
from mqtune.cli.place import Place, complete_trial, find_place, find_trial, name_argument, steered
from mqtune.cli.servers import PATIENCE_S, client_of, redis_at
from mqtune.cli.submit import submission_of
from mqtune.cli.terms import STATUSES, config_of
from mqtune.core.errors import ConfigurationError, RequestRefused
from mqtune.core.experiment import Experiment
from mqtune.core.priorities import PRIORITIES
from mqtune.core.text import printable
from mqtune.core.trial import Config, Trial, TrialId, TrialStatus, is_number

if TYPE_CHECKING:
    from mqtune.client import Answer, ExperimentHandle, ExperimentState

#: The exit code if a request is not yet carried out.
NOT_YET: Final = 3
#: Seconds to wait for an answer. A living driver answers immediately, and a dead one is known as such after 20 s.
_ANSWER_S: Final = 30.0
#: Seconds. A new trial that is not answered within them waits for a slot, not for the driver.
_TAKEN_S: Final = 0.5
_OPEN: Final = frozenset(status for status in TrialStatus if not status.is_terminal)
_RUNNING: Final = frozenset({TrialStatus.RUNNING})
_PAUSED: Final = frozenset({TrialStatus.PAUSED})
_DEPLOYED: Final = frozenset({TrialStatus.QUEUED, TrialStatus.RUNNING})


class ActionWords(NamedTuple):
    """An action's effect in words, and the statuses of the trials to which it can be applied."""

    done: str
    statuses: frozenset[TrialStatus]


ACTIONS: Final = {
    "stop": ActionWords("is stopped", _OPEN),
    "pause": ActionWords("is paused", _DEPLOYED),
    "resume": ActionWords("is resumed", _PAUSED),
    "restart": ActionWords("restarts", _OPEN),
    "save": ActionWords("will save a checkpoint", _RUNNING),
    "complete": ActionWords("is completed", _DEPLOYED),
    "abandon": ActionWords("is abandoned", _OPEN),
    "fail": ActionWords("is marked as failed", _OPEN),
}
#: The effects of other actions in words.
_DONE: Final = {
    "add": "is added",
    "ask": "is yours to evaluate",
    "tell": "has your report",
    "set": "has new limits",
    "end": "is ending",
    "label": "has new labels",
}
#: Actions on an experiment, as in "can't add a trial to …".
_OF_EXPERIMENT: Final = {
    "add": "add a trial to",
    "ask": "get a config of",
    "tell": "report a result to",
    "set": "change the limits of",
}
#: Why an ended trial refuses an action.
_ALREADY: Final = {
    TrialStatus.COMPLETED: "it has already completed",
    TrialStatus.EARLY_STOPPED: "it was already stopped early",
    TrialStatus.FAILED: "it has already failed",
    TrialStatus.ABANDONED: "it was already abandoned",
}
#: The action for each value of --as.
_ENDS: Final = {"stopped": "stop", "completed": "complete", "failed": "fail", "abandoned": "abandon"}
#: Actions that discard work. For several trials, the user must confirm them.
_DESTRUCTIVE: Final = frozenset({*_ENDS.values(), "restart"})
_NAMED: Final = 5
_SCRATCH: Final = "scratch"
#: The word for all trials to which an action can be applied.
_ALL: Final = "all"


class Outcome(NamedTuple):
    """The outcome of a request, as far as it is known.

    Attributes:
        done: whether the request was carried out.
        reason: why it waits or was refused, or details if it was carried out.
        request: the request's id.
        config: the config of a new trial.
    """

    action: str
    trial: str
    done: bool
    reason: str = ""
    refused: bool = False
    request: str = ""
    config: Config | None = None


class RequestOptions(NamedTuple):
    """How to send requests to an experiment's driver, and how to print the outcomes.

    Attributes:
        wait_s: seconds to wait for the driver's answer.
        force: whether to act on somebody else's experiment.
    """

    broker: str | None
    wait_s: float
    force: bool
    as_json: bool

    @contextlib.contextmanager
    def handle_of(self, name: str) -> Iterator[ExperimentHandle]:
        """Yield a handle for requests to the driver of the experiment with this name."""
        with steered(find_place(name, self.broker), force=self.force) as handle:
            yield handle


def request_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add the options of requests. They are passed as *options*."""

    @functools.wraps(command)
    def call(*, broker: str | None, wait_s: float, force: bool, as_json: bool, **others: object) -> object:
        return command(options=RequestOptions(broker, wait_s, force, as_json), **others)

    wait_option = click.option(
        "--wait",
        "wait_s",
        type=click.FloatRange(min=0),
        default=_ANSWER_S,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for the driver's answer. Without an answer, the request remains valid.",
    )
    return wait_option(force_option(_broker_option(json_option(call))))


_broker_option = broker_option(
    "The Redis server that has the experiment. Not needed for one that runs on this machine alone."
)
_yes = click.option("--yes", is_flag=True, help="Don't ask for confirmation, even for several trials.")
_reason = click.option("--reason", default="", metavar="TEXT", help="The reason in a few words, stored with the trial.")
config_option = click.option(
    "--config", "configs", multiple=True, metavar="NAME=VALUE,…", help="Values, or a JSON object; may be repeated."
)


class ChosenTrials(NamedTuple):
    """The trials that a user has named or selected."""

    trials: tuple[str, ...]
    condition: Condition | None
    statuses: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the user has neither named nor selected trials."""
        return not (self.trials or self.condition or self.statuses)

    def of(self, experiment: Experiment, statuses: frozenset[TrialStatus]) -> list[Trial]:
        """Return the chosen trials, each once.

        Of named trials, those are chosen that also meet the condition and the chosen statuses. Without named trials,
        or with "all", all such trials of the experiment are chosen.

        Args:
            statuses: the statuses of trials if none are named and no status is chosen.

        Raises:
            ConfigurationError: a named trial does not exist.
        """
        ids = dict.fromkeys(find_trial(experiment, name) for name in self.trials if name != _ALL)
        trials, wanted = (
            selected(experiment.trials.values(), self.condition),
            frozenset(map(TrialStatus, self.statuses)),
        )
        if _ALL not in self.trials and ids:
            return [trial for trial in trials if trial.id in ids and (not wanted or trial.status in wanted)]
        return [trial for trial in trials if trial.status in (wanted or statuses)]


def trial_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add the arguments and options that choose trials. They are passed as *choice*."""

    @functools.wraps(command)
    def call(
        *, trials: tuple[str, ...], wheres: tuple[str, ...], statuses: tuple[str, ...], **others: object
    ) -> object:
        return command(choice=ChosenTrials(trials, condition_of(wheres), statuses), **others)

    added: Callable[..., object] = call
    for add in (
        click.option("--status", "statuses", multiple=True, type=STATUSES, help="Only trials with this status."),
        click.option(
            "--where",
            "wheres",
            multiple=True,
            metavar="CONDITION",
            help="Only trials that match, such as 'lr<0.1 or optimizer=sgd'.",
        ),
        click.argument("trials", nargs=-1, metavar=f"[TRIAL|{_ALL}]…", shell_complete=complete_trial),
        name_argument,
    ):
        added = add(added)
    return added


def steer_trials(
    action: str,
    name: str,
    choice: ChosenTrials,
    how: dict[str, object],
    options: RequestOptions,
    *,
    yes: bool = False,
    origin: str | None = None,
) -> None:
    """Request an action on each chosen trial, print the outcomes, and exit with their code.

    Args:
        how: further arguments for the method of ``TrialHandle`` with the action's name.
        yes: whether to skip the confirmation.
        origin: the trial and checkpoint to start from, as in --from.
    """
    if choice.is_empty:
        raise click.UsageError(f"name trials, or {_ALL}, or give --where or --status")
    with options.handle_of(name) as handle:
        experiment = experiment_of(handle)
        how["wait_s"] = options.wait_s
        if origin is not None:
            how["source"], how["checkpoint"] = _origin(experiment, origin)
        trials = choice.of(experiment, ACTIONS[action].statuses)
        if not trials:
            click.echo(f"{handle.name} has no trial to {action}", err=True)
        if action in _DESTRUCTIVE and not _is_agreed(action, trials, experiment, yes=yes):
            return
        outcomes = (steer_trial(handle, action, trial, how) for trial in trials)
        tell(handle.name, outcomes, as_json=options.as_json)


def _is_agreed(action: str, trials: list[Trial], experiment: Experiment, *, yes: bool) -> bool:
    ids = [trial.id for trial in trials if not trial.status.is_terminal]
    if len(ids) <= 1 or yes:
        return True
    more = f", … and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    named = ", ".join(ids[:_NAMED])
    click.echo(
        f"{action} {len(ids)} of the {len(experiment.trials)} trials of {experiment.name}: {named}{more}", err=True
    )
    return is_confirmed("Really?", yes=yes)


def experiment_of(handle: ExperimentHandle) -> Experiment:
    """Return an experiment's current state, read from its journal on the server."""
    with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
        return handle.results(Path(folder)).experiment


def steer_trial(handle: ExperimentHandle, action: str, trial: Trial, how: dict[str, object]) -> Outcome:
    """Request an action on a trial and return the outcome. If the trial has ended, refuse it."""
    if trial.status.is_terminal:
        # Without a driver, the next one would refuse the request when nobody waits for its answer.
        return Outcome(action, trial.id, done=False, reason=_ALREADY[trial.status], refused=True)
    return ask(action, trial.id, partial(getattr(handle.trial(trial.id), action), **how))


def ask(action: str, trial: str, request: Callable[[], Answer]) -> Outcome:
    """Call *request* and return its outcome. A refusal is an outcome, too."""
    try:
        answer = request()
    except RequestRefused as error:
        return Outcome(action, trial, done=False, reason=str(error), refused=True)
    return Outcome(
        action, answer.trial or trial, answer.is_done, answer.reason, request=answer.request_id, config=answer.config
    )


def tell(name: str, outcomes: Iterable[Outcome], *, as_json: bool) -> None:
    """Print each outcome as soon as it is known. Exit with a code unless all requests are done.

    The code is 1 if any was refused, else ``NOT_YET``.
    """
    known = []
    for outcome in outcomes:
        known.append(outcome)
        if not as_json:
            _say(outcome, name)
    if as_json:
        print_json([outcome._asdict() for outcome in known])
    waiting = [outcome for outcome in known if not outcome.done and not outcome.refused]
    if not as_json and any(outcome.reason.startswith("no driver") for outcome in waiting):
        click.echo(f"continue it: mqtune drive {name}, or run its script again", err=True)
    if code := 1 if any(outcome.refused for outcome in known) else NOT_YET if waiting else 0:
        sys.exit(code)


def _say(outcome: Outcome, name: str) -> None:
    text = in_words(outcome, name)
    click.echo(printable(text), err=True) if outcome.refused else say(text)


def in_words(outcome: Outcome, name: str) -> str:
    """Return a request's outcome in words."""
    target = f"trial {outcome.trial}" if outcome.trial else name
    if outcome.refused:
        action = outcome.action if outcome.trial else _OF_EXPERIMENT.get(outcome.action, outcome.action)
        return f"can't {action} {target}: {outcome.reason}"
    if outcome.done:
        return f"{target} {_done(outcome)}{f': {outcome.reason}' if outcome.reason else ''}"
    return f"{target}: {outcome.action} is requested; {outcome.reason}"


def _done(outcome: Outcome) -> str:
    action = ACTIONS.get(outcome.action)
    return _DONE[outcome.action] if action is None else action.done


def _origin(experiment: Experiment, text: str) -> tuple[str, str | None]:
    """Return the trial and checkpoint of a text such as ``3``, ``3@best`` or ``@best``.

    Without a trial, its id is empty. Without a checkpoint, it is None and means the newest.
    """
    trial, _, checkpoint = text.partition("@")
    if not trial and not checkpoint:
        raise click.UsageError("--from has no trial; write --from 3 or --from 3@best")
    return (find_trial(experiment, trial) if trial else TrialId("")), checkpoint or None


_HOW: Final = (
    "TRIAL is an id such as 0007 or 7, or best, or all for every trial to which this can be applied. The command waits "
    "for the driver's answer. If there is no driver, the next one carries the request out."
)


@click.command("pause", help=f"Pause trials. They save a checkpoint and free their slots.\n\n{_HOW}")
@trial_options
@_reason
@request_options
def _pause(name: str, choice: ChosenTrials, reason: str, options: RequestOptions) -> None:
    steer_trials("pause", name, choice, {"reason": reason}, options)


@click.command("save", help=f"Save checkpoints of running trials, as soon as they can.\n\n{_HOW}")
@trial_options
@request_options
def _save(name: str, choice: ChosenTrials, options: RequestOptions) -> None:
    steer_trials("save", name, choice, {}, options)


@click.command("stop", help=f"Stop trials, or end them as completed, failed or abandoned.\n\n{_HOW}")
@trial_options
@click.option(
    "--as",
    "end",
    type=click.Choice([*_ENDS]),
    default="stopped",
    show_default=True,
    help="How the trials end. Failed trials are not retried, and the configs of abandoned trials are never proposed "
    "again.",
)
@_yes
@_reason
@request_options
def _stop(name: str, choice: ChosenTrials, end: str, reason: str, options: RequestOptions, *, yes: bool) -> None:
    if choice.is_empty:
        raise click.UsageError(
            f"name trials, or {_ALL}, or give --where or --status; to end the experiment: mqtune end {name}"
        )
    steer_trials(_ENDS[end], name, choice, {"reason": reason}, options, yes=yes)


@click.command("end")
@name_argument
@click.option("--now", is_flag=True, help="Stop its running trials.")
@request_options
def _end(name: str, options: RequestOptions, *, now: bool) -> None:
    """End an experiment: no further trial starts, and its running trials finish.

    If the experiment has not begun or has finished, this ends the submitted script of that name.
    """
    place = find_place(name, options.broker)
    if (outcome := _end_script(place, force=options.force)) is not None:
        tell(place.name, [outcome], as_json=options.as_json)
        return
    with steered(place, force=options.force) as handle:
        state = handle.state()
        if state is not None and state.outcome == "finished":
            raise ConfigurationError(f"experiment {handle.name!r} has already finished")
        outcome = ask("end", "", partial(handle.end, now=now, wait_s=options.wait_s))
        tell(handle.name, [outcome], as_json=options.as_json)


def _end_script(place: Place, *, force: bool) -> Outcome | None:
    """End a submitted script if its experiment has not begun or has finished.

    Return the outcome, or None if there is no such script or its experiment is unfinished. In that case
    the caller ends the experiment, and the script continues afterwards.
    """
    from mqtune.journal.server.owner import person  # noqa: PLC0415
    from mqtune.services.submissions.board import Submissions  # noqa: PLC0415

    submitted = submission_of(place)
    if submitted is None or submitted.has_ended or not place.broker:
        return None
    with client_of(place.broker) as client:
        if client.has_begun(place.name):
            state = client.experiment(place.name).state()
            if state is None or state.outcome != "finished":
                return None
    if submitted.submission is not None:
        script = f"the script submitted as {place.name!r}"
        check_owner(place.broker, script, submitted.submission.owner, doing="end", force=force)
    note(place.broker, "halt", place.name)
    with redis_at(place.broker, role="operator") as client:
        who = person(client)
        halted = Submissions(client, patience_s=PATIENCE_S).halt(place.name, f"by {who}")
    effect = "its script ends within a minute" if halted == "told" else "its script is no longer running"
    return Outcome("end", "", done=True, reason=effect)


@click.command(
    "resume",
    help="Resume paused trials from their newest checkpoint, or restart unfinished trials from elsewhere (--from).\n\n"
    f"{_HOW}",
)
@trial_options
@config_option
@click.option(
    "--from",
    "origin",
    metavar=f"{_SCRATCH}|TRIAL[@best]",
    help=f"Restart the trials, even running ones, from {_SCRATCH}, or from TRIAL's newest checkpoint, its best one "
    "(TRIAL@best) or any (TRIAL@ID). @best alone means each trial's own best one.",
)
@_yes
@_reason
@request_options
def _resume(
    name: str,
    choice: ChosenTrials,
    configs: tuple[str, ...],
    origin: str | None,
    reason: str,
    options: RequestOptions,
    *,
    yes: bool,
) -> None:
    action = "resume" if origin is None else "restart"
    how: dict[str, object] = {"config": config_of(configs) or None, "reason": reason}
    source = None if origin == _SCRATCH else origin
    steer_trials(action, name, choice, how, options, yes=yes, origin=source)


@click.command("add")
@name_argument
@config_option
@click.option(
    "--from",
    "origin",
    metavar="TRIAL[@best]",
    help="Start from TRIAL's newest checkpoint, its best one (TRIAL@best) or any (TRIAL@ID). @best alone means the "
    "best trial's best one.",
)
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag of the new trial; may be repeated.")
@click.option("--notes", default="", metavar="TEXT", help="Notes of the new trial.")
@click.option("--key", default="", help="Your own name for the trial. Adding the same key again has no effect.")
@request_options
def _add(
    name: str,
    configs: tuple[str, ...],
    origin: str | None,
    tags: tuple[str, ...],
    notes: str,
    key: str,
    options: RequestOptions,
) -> None:
    """Run a trial with your own config next. Missing values are sampled.

    The new trial's id is printed, or why it waits for a free slot. Values are JSON or text:
    lr=0.1,optimizer=adam,layers.width=64.
    """
    place, wait_s = find_place(name, options.broker), options.wait_s
    with steered(place, force=options.force) as handle:
        source, checkpoint = ("", None) if origin is None else _origin(experiment_of(handle), origin)
        request = partial(
            handle.add,
            config_of(configs),
            source,
            checkpoint,
            tags=tags,
            notes=notes,
            key=key,
            request_id=secrets.token_hex(16),
        )
        outcome = ask("add", "", partial(request, wait_s=min(wait_s, _TAKEN_S)))
        if not outcome.done and not outcome.refused and (state := handle.state()) is not None and state.is_driven:
            if why := _why_queued(place, handle, state):
                outcome = outcome._replace(reason=f"it is queued and starts as soon as a slot is free: {why}")
            elif wait_s > _TAKEN_S:
                outcome = ask("add", "", partial(request, wait_s=wait_s - _TAKEN_S))
        tell(handle.name, [outcome], as_json=options.as_json)


def with_limits(outcome: Outcome, values: Mapping[str, object]) -> Outcome:
    """Return the outcome of ``set``. If it was carried out, its reason lists the new limits."""
    if not outcome.done:
        return outcome
    return outcome._replace(reason=", ".join(f"{key}={value}" for key, value in values.items() if value is not None))


def _why_queued(place: Place, handle: ExperimentHandle, state: ExperimentState) -> str:
    """Return why no slot takes another trial now. It is empty if a slot is free."""
    from mqtune.cli.why import Inquiry  # noqa: PLC0415 - few need it

    with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
        results = handle.results(Path(folder))
        reasons = Inquiry(place, results.experiment, results.definition).no_slot()
    return reasons[0].text if reasons else state.waits


class _Limit(NamedTuple):
    """Which values a limit accepts, and the text of the error for others."""

    accepts: Callable[[object], bool]
    must: str


_COUNT: Final = _Limit(lambda value: type(value) is int and value > 0, "must be a whole number of at least 1")
_ABOVE_ZERO: Final = _Limit(lambda value: is_number(value) and 0 < value < math.inf, "must be a number above 0")
_LIMITS: Final = {
    "max_trials": _COUNT,
    "max_concurrent": _COUNT,
    "priority": _Limit(lambda value: value in PRIORITIES, f"must be {', '.join(PRIORITIES[:-1])} or {PRIORITIES[-1]}"),
    "preemptible": _Limit(lambda value: type(value) is bool, "must be true or false"),
    "share": _ABOVE_ZERO,
    "journal_mb": _ABOVE_ZERO,
}


@click.command("set")
@name_argument
@click.argument("limits", nargs=-1, required=True, metavar="NAME=VALUE…")
@request_options
def _set(name: str, limits: tuple[str, ...], options: RequestOptions) -> None:
    """Change an experiment's limits: max_trials=200 max_concurrent=16 share=2.

    priority is high, normal or low. share is a number: with share=2 an experiment gets twice the slots of one with
    share=1 and the same priority. preemptible is true or false. journal_mb limits the size of the journal.
    """
    values = config_of(limits)
    for key, value in values.items():
        if key not in _LIMITS:
            raise click.UsageError(f"{key!r} is not a limit; the limits are {', '.join(_LIMITS)}")
        if not _LIMITS[key].accepts(value):
            raise click.UsageError(f"{key}={value!r} {_LIMITS[key].must}")
    with options.handle_of(name) as handle:
        request = partial(handle.set, **values, wait_s=options.wait_s)
        outcome = with_limits(ask("set", "", request), values)
        tell(handle.name, [outcome], as_json=options.as_json)


COMMANDS: Final = {
    "stop": _stop,
    "pause": _pause,
    "resume": _resume,
    "save": _save,
    "add": _add,
    "set": _set,
    "end": _end,
}
