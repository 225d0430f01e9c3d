"""Find experiments and trials by their names, which may be shortened, here or on a broker."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from mqtune.cli.servers import client_of, redis_at
from mqtune.cli.terms import BEST
from mqtune.core.errors import ConfigurationError, CopyIncomplete, MqtuneError
from mqtune.core.experiment import Experiment
from mqtune.core.machine import SERVER_FOLDER, mqtune_home
from mqtune.core.text import names_in_words, printable
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile, is_written
from mqtune.results.experiments import (
    created_event,
    find_experiment,
    first_events,
    saved_experiments,
    state_in_words,
    state_of_folder,
    with_failures,
)
from mqtune.results.labelling import is_in_folder_alone
from mqtune.results.results import Results

if TYPE_CHECKING:
    from mqtune.client import ExperimentHandle, ExperimentState

_Command = TypeVar("_Command", bound=Callable[..., object])

#: Seconds to connect to a broker when a shell completes a name.
_COMPLETION_S: Final = 1.0


class Place(NamedTuple):
    """An experiment's name, its folder on this machine or None, and its broker or None."""

    name: str
    folder: Path | None
    broker: str | None

    @property
    def own_folder(self) -> Path | None:
        """The folder if the experiment has its own server there, else None.

        Such a server normally runs only as long as the driver.
        """
        return self.folder if self.folder is not None and (self.folder / SERVER_FOLDER).is_dir() else None


class View(NamedTuple):
    """An experiment's results, its state in words, and the folder or broker with it."""

    results: Results
    state: str
    place: str


def is_asked_for(option: str = "broker") -> bool:
    """Return whether the user gave an option on the command line, and not in the environment."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def chosen(kind: str, given: str, names: Sequence[str]) -> str | None:
    """Return the name that equals *given*, or the only one that begins with it, or None.

    Raises:
        ConfigurationError: several names have that prefix.
    """
    matching = (
        [given] if given in names else list(dict.fromkeys(name for name in names if given and name.startswith(given)))
    )
    if len(matching) > 1:
        raise ConfigurationError(f"{kind} {given!r} may be any of {names_in_words(matching)}; give more of the name")
    return matching[0] if matching else None


def whole_name(name: str, broker: str | None) -> str:
    """Return the full name of an experiment. A name that is unknown is returned as it is.

    Raises:
        ConfigurationError: the shortened name fits several experiments.
    """
    here = [folder.name for folder in saved_experiments()]
    remote: list[str] = []
    if broker and name not in here:
        with contextlib.suppress(MqtuneError):
            remote = names_on(broker)
    return chosen("experiment", name, [*here, *remote]) or name


def find_place(name: str, broker: str | None) -> Place:
    """Return the place of the experiment with this name, or in this folder.

    It is looked for on this machine first, but only on the broker if that is given on the command line.

    Raises:
        ConfigurationError: the experiment does not exist, or the shortened name fits several.
        BrokerUnavailable: the experiment is not here, and the broker does not answer.
    """
    here = [] if broker and is_asked_for() else [folder.name for folder in saved_experiments()]
    if name not in here and not (broker and is_asked_for()) and (Path(name) / JOURNAL_FILE).is_file():
        return Place(Path(name).resolve().name, Path(name), broker)
    remote: list[str] = []
    if broker and name not in here:
        try:
            remote = names_on(broker)
        except MqtuneError:
            if chosen("experiment", name, here) is None:
                raise
    full_name = chosen("experiment", name, [*here, *remote])
    if full_name is None:
        if broker:
            with client_of(broker) as client:
                # Raises an error that lists the broker's experiments.
                client.experiment(name)
        find_experiment(name)
        raise ConfigurationError(f"there is no experiment {name!r}; mqtune list shows all experiments")
    return Place(full_name, mqtune_home() / full_name if full_name in here else None, broker)


def newest_place(broker: str | None) -> Place:
    """Return the place of the most recently changed experiment.

    Raises:
        ConfigurationError: there is no experiment.
    """
    saved = [] if broker and is_asked_for() else saved_experiments()
    if saved:
        return Place(saved[0].name, saved[0], broker)
    if not broker:
        raise ConfigurationError("there is no experiment on this machine yet; try: mqtune demo")
    if not (names := names_on(broker)):
        raise ConfigurationError("there is no experiment on the broker yet")
    return Place(names[0], None, broker)


def names_on(broker: str) -> list[str]:
    """Return the names of a broker's experiments, newest first."""
    with client_of(broker) as client:
        return [experiment.name for experiment in client.experiments()]


@contextlib.contextmanager
def opened(place: Place) -> Iterator[View]:
    """Yield a view of an experiment, read from its folder or its server.

    The server is read if there is no folder, or if the folder lacks entries.

    Raises:
        CopyIncomplete: the folder lacks entries that its driver could not write, and the broker is unknown.
    """
    with contextlib.ExitStack() as stack:
        try:
            if place.folder is None:
                view = stack.enter_context(_read_on_broker(place.name, place.broker or ""))
            else:
                results = Results.load(place.folder)
                state = with_failures(_state(place, place.folder, results), results.experiment.statuses)
                view = View(results, state, str(results.folder))
        except CopyIncomplete:
            if (server_view := _server_view(place, stack)) is None:
                raise
            view = server_view
        yield view


@contextlib.contextmanager
def _read_on_broker(name: str, url: str) -> Iterator[View]:
    with client_of(url) as client, tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
        experiment = client.experiment(name)
        results, state = experiment.results(Path(folder)), experiment.state()
        text = "" if state is None else state_text(state)
        yield View(results, with_failures(text, results.experiment.statuses), client.place)


def _server_view(place: Place, stack: contextlib.ExitStack) -> View | None:
    """Return the experiment of a folder, read from its server, or None if that can't be read."""
    assert place.folder is not None  # noqa: S101 - that is where it is
    created = created_event(first_events(JournalFile(place.folder / JOURNAL_FILE)), place.folder)
    with contextlib.suppress(MqtuneError):
        view = stack.enter_context(_read_on_broker(created.name, stack.enter_context(server_of(place))))
        return view if view.results.experiment.created_at == created.at else None
    return None


def _state(place: Place, folder: Path, results: Results) -> str:
    """Return the state of an experiment in a folder. Ask the broker for drivers elsewhere."""
    if place.broker and not (results.outcome or place.own_folder or is_written(folder / JOURNAL_FILE)):
        # If the broker does not answer, the copy's state is returned.
        with contextlib.suppress(MqtuneError), client_of(place.broker) as client:
            state = client.experiment(place.name).state()
            # Another experiment on the broker may have this name.
            if state is not None and state.created_at == results.experiment.created_at:
                return state_text(state)
    return state_of_folder(folder, results.outcome)


def state_text(state: ExperimentState) -> str:
    """Return the state of an experiment on a broker in a few words."""
    return state_in_words(state.outcome, is_driven=state.is_driven, age_s=state.age_s, script=state.script)


def live_broker(place: Place) -> str | None:
    """Return the URL of an experiment's server, or None if it is unknown or does not run."""
    if place.own_folder is None:
        return place.broker
    from mqtune.backends.local.server import EmbeddedServer  # noqa: PLC0415 - as above

    return EmbeddedServer.running_url(place.own_folder)


@contextlib.contextmanager
def steered(place: Place, *, force: bool = False) -> Iterator[ExperimentHandle]:
    """Yield a handle for requests to an experiment's driver.

    Somebody else's experiment needs *force*, unless it has its own server. If such a server has ended with its driver,
    it is started for the request. The next driver then finds the request.

    Raises:
        ConfigurationError: the experiment's broker is not known.
    """
    with server_of(place) as url, client_of(url) as client:
        yield client.experiment(place.name, force=force or place.own_folder is not None)


@contextlib.contextmanager
def server_of(place: Place) -> Iterator[str]:
    """Yield the URL of an experiment's server. If it is its own and does not run, start it.

    Raises:
        ConfigurationError: the experiment's broker is not known, or it is on no server.
    """
    if place.own_folder is not None:
        with _own_server(place.own_folder) as url:
            yield url
    elif place.broker:
        yield place.broker
    elif place.folder is not None and is_in_folder_alone(place.folder):
        raise ConfigurationError(
            f"experiment {place.name!r} was imported, archived or simulated, and is only in {place.folder}: it has no "
            f"driver to control. To delete it: mqtune delete {place.name}"
        )
    else:
        raise ConfigurationError(
            f"experiment {place.name!r} did not run on this machine alone; give its broker: --broker URL or "
            "$MQTUNE_BROKER"
        )


@contextlib.contextmanager
def _own_server(folder: Path) -> Iterator[str]:
    from mqtune.backends.local.server import EmbeddedServer  # noqa: PLC0415 - as above

    if url := EmbeddedServer.running_url(folder):
        yield url
        return
    with EmbeddedServer.start(folder) as server:
        yield server.url


def find_trial(experiment: Experiment, given: str) -> TrialId:
    """Return the id of a trial, given its id or a prefix of it that no other trial has.

    Leading zeros may be left out. "best" means the best trial.

    Raises:
        ConfigurationError: the trial does not exist, or the prefix fits several.
    """
    if given == BEST and experiment.best is not None:
        return experiment.best.id
    ids = list(experiment.trials)
    if (padded := TrialId(given.zfill(4))) in experiment.trials:
        return padded
    if (full_id := chosen("trial", given, ids)) is not None:
        return TrialId(full_id)
    if given == BEST and not experiment.objective.is_single:
        front = [trial.id for trial in experiment.pareto_front]
        front_text = f"its Pareto front has {names_in_words(front)}" if front else "its Pareto front is still empty"
        raise ConfigurationError(
            f"experiment {experiment.name!r} has several metrics, and so no single best trial; {front_text}"
        )
    if given == BEST:
        raise ConfigurationError(f"experiment {experiment.name!r} has no best trial yet: no trial has a value")
    span = f"it has {ids[0]} to {ids[-1]}" if ids else "it has no trials yet"
    raise ConfigurationError(f"experiment {experiment.name!r} has no trial {given!r}; {span}")


def complete_experiment(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete an experiment's name in a shell, from those on this machine and on the broker."""
    names = {folder.name: "" for folder in saved_experiments()}
    with contextlib.suppress(Exception):
        names |= dict.fromkeys(_quick_names(context.params.get("broker")), "")
    # The name may have control characters: anyone with access to the broker may have chosen it.
    return [CompletionItem(printable(name)) for name in names if name.startswith(incomplete)]


def complete_trial(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a trial's id in a shell, if the experiment is on this machine."""
    with contextlib.suppress(Exception):
        trials = Results.load(str(context.params["name"])).experiment.trials.values()
        return [
            CompletionItem(trial.id, help=trial.status.value) for trial in trials if trial.id.startswith(incomplete)
        ]
    return []


def _quick_names(broker: str | None) -> list[str]:
    from mqtune.journal.redis import experiments_on  # noqa: PLC0415

    if not broker:
        return []
    with redis_at(broker, timing=Timing(connect_timeout_s=_COMPLETION_S)) as client:
        return experiments_on(client, patience_s=0)


def name_argument(command: _Command) -> _Command:
    """Add the argument NAME, the name of an experiment."""
    return click.argument("name", shell_complete=complete_experiment)(command)


def trial_argument(command: _Command) -> _Command:
    """Add the argument TRIAL, the id of a trial."""
    return click.argument("trial", shell_complete=complete_trial)(command)
