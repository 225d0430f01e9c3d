"""Ax's generation strategies as a searcher; needs the extra ``ax``."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import random
import statistics
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from mqtune import Space, TrialStatus
from mqtune.extend import (
    OF_OBJECTIVE,
    Config,
    ConfigurationError,
    Description,
    Domain,
    Entries,
    Interval,
    Kind,
    Later,
    Metrics,
    ModelSearcher,
    Objective,
    Parameter,
    Record,
    SpaceError,
    Trial,
    fingerprint,
    install_command,
    is_number,
    names_in_words,
    parameter,
    shares,
    with_hints,
)
from mqtune.search import WAIT, PastTrial


def _nothing(_: logging.LogRecord) -> bool:
    return False


#: This module of Ax's says on import which database it could use.
_database = logging.getLogger("ax.storage.sqa_store.with_db_settings_base")
_database.addFilter(_nothing)
try:
    import torch
    from ax.adapter.data_utils import DataLoaderConfig
    from ax.adapter.registry import Generators
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
    from ax.core.data import Data, DataRow
    from ax.core.trial_status import TrialStatus as Status
    from ax.exceptions.core import DataRequiredError, OptimizationComplete, SearchSpaceExhausted
    from ax.exceptions.generation_strategy import GenerationStrategyRepeatedPoints, MaxParallelismReachedException
    from ax.generation_strategy.generation_strategy import GenerationStrategy
    from ax.generation_strategy.generator_spec import GeneratorSpec
    from ax.utils.common.logger import ROOT_STREAM_HANDLER
    from ax.utils.common.random import with_rng_seed

    from mqtune.integrations.ax_private import experiment_of, rows_of, strategy_of, uncompiled
    from mqtune.integrations.ax_space import check_alike, check_objective, constrained
except ImportError as error:
    raise ConfigurationError(f"Ax can't be imported ({error}); {install_command('ax')}") from error
finally:
    _database.removeFilter(_nothing)

#: The strategies that Ax has a name for.
METHODS: Final = ("fast", "quality", "random_search")
#: Ax takes all objectives for maximised.
_SIGNS: Final = {"min": "-", "max": ""}
#: What Ax warns of at each suggestion for several metrics: its own code, and that there are no bounds on them.
_WARNINGS: Final = ("To copy construct from a tensor", "Encountered a `MultiObjective` without objective thresholds")
#: Values at an early time count only if trials differ there by this share of what they differ by at the time where they do most.
_TELLING: Final = 0.5
#: How many values it takes to know by how much trials differ: as many as Syne Tune's MOBSTER wants at a time that it suggests for.
_SPREAD_OF: Final = 3
#: How many trials must have ended with data before there is a model: Ax's own default for its five first trials.
_OBSERVED: Final = 2
#: What a trial that has ended, or is paused, is for Ax.
_STATUSES: Final = {
    TrialStatus.COMPLETED: Status.COMPLETED,
    TrialStatus.EARLY_STOPPED: Status.EARLY_STOPPED,
    TrialStatus.PAUSED: Status.EARLY_STOPPED,
    TrialStatus.FAILED: Status.FAILED,
    TrialStatus.ABANDONED: Status.ABANDONED,
}
#: What Ax has in their place where a trial has brought no data: it has no completed or stopped ones without.
_STATUSES_WITHOUT_DATA: Final = {
    **_STATUSES,
    TrialStatus.COMPLETED: Status.FAILED,
    TrialStatus.EARLY_STOPPED: Status.ABANDONED,
    TrialStatus.PAUSED: Status.FAILED,
}


@dataclass(slots=True)
class _Record(Record):
    """What the searcher knows of a trial's current config: Ax's trial, if it is in the space, and the metrics' newest values."""

    trial: Any
    step: int = -1
    values: tuple[float, ...] = ()
    #: The step of the values that Ax has, or is about to have.
    told: int = -1
    #: Whether all that is known is how it ended: at no step, for which Ax takes the latest one of all trials.
    is_end: bool = False

    @property
    def has_data(self) -> bool:
        return self.told >= 0

    @property
    def is_due(self) -> bool:
        """Whether its step is the first at or beyond a power of two, or one that was reported again."""
        return not self.has_data or self.step == self.told or self.step.bit_length() > self.told.bit_length()

    @property
    def has_diverged(self) -> bool:
        return not all(map(math.isfinite, self.values))


class AxSearcher(ModelSearcher[_Record]):
    """Proposes what Ax suggests: by default the centre of the space, four points of a Sobol sequence, and then a Gaussian process.

    Ax's ``Client`` is held in memory, and is a model only: a driver that resumes an experiment feeds it with what the journal
    has, and asks for nothing again. With a strategy that Ax has a name for it then suggests what it would have suggested
    without the break; one of your own begins with its first node again, unless its criteria count all trials.

    What Ax has of a trial is what its rules make of it: RUNNING until it ends, also when it was lost and runs again;
    COMPLETED, or EARLY_STOPPED, which a paused one is meanwhile, with the value at its last step; FAILED; ABANDONED, which is
    never suggested again. Without any value, a completed or paused one is FAILED and a stopped one ABANDONED. A trial whose
    last value is not finite has diverged: it is ABANDONED.

    Ax has a trial's values at the steps 1, 2, 4, 8 and so on, and its last one. Once trials have been stopped early or paused, the
    strategies that Ax has a name for model config and time together, from all of these, and suggest for the latest time that
    any trial has come to, as MOBSTER does; before, and otherwise, Ax models the last of them. Time is taken as its logarithm. Values at
    early times at which trials are still alike are left out.

    Ax models the experiment's outcome constraints, of several metrics also those on what is optimised; it may try what turns out to
    violate them. A Client has its own, which are Ax's alone.

    With several metrics Ax looks for their Pareto front. Of a report counts all that is optimised and constrained, or nothing.

    Requires ax-platform 1.3 or later. Sources: Balandat et al., "BoTorch: A Framework for Efficient Monte-Carlo Bayesian
    Optimization", 2020; Klein et al., "Model-based Asynchronous Hyperparameter and Neural Architecture Search",
    arXiv:2003.10865, section 4.

    Args:
        strategy: "fast" for a Gaussian process; "quality" for one with a sparse prior and warped inputs, which takes many times
            as long; "random_search" for the Sobol sequence alone; a new ``GenerationStrategy`` of Ax's; or a configured ``Client``,
            which is copied: with its space (``ax_space.space_of``), its constraints, the trials that it has, and its generation
            strategy, or else "fast".
        seed: None for the experiment's.

    Raises:
        ConfigurationError: Ax is not installed, *strategy* or a constraint is none, the strategy is another experiment's, the space
            has nothing that Ax could choose, or a trial has completed without a metric that is constrained.
    """

    kind = "ax"

    @with_hints(OF_OBJECTIVE, {})
    def __init__(self, strategy: Any = "fast", *, seed: int | None = None) -> None:
        if strategy not in METHODS and not isinstance(strategy, GenerationStrategy | Client):
            raise ConfigurationError(
                f"AxSearcher: strategy={strategy!r:.80} is neither one of {', '.join(METHODS)} nor a GenerationStrategy or a "
                "Client of Ax"
            )
        super().__init__(seed)
        #: The client to begin with, if one was given.
        self._given = strategy if isinstance(strategy, Client) else None
        #: The metrics that are constrained.
        self._constrained: list[str] = []
        if self._given is not None:
            self._constrained = constrained(self._given)
            strategy = strategy_of(self._given) or METHODS[0]
        self._strategy = strategy
        #: Values that Ax is to be told, all at once as that takes milliseconds each time.
        self._untold: list[DataRow] = []
        self._tried: set[str] = set()

    def check_space(self, space: Space) -> None:
        """Check that there is something to choose, and nothing that Ax can't keep to."""
        if space.constraint:
            raise ConfigurationError('AxSearcher: Ax can\'t keep to the constraint of the space; searcher="tpe" does')
        if self._given is not None:
            check_alike(space, self._given)
        for path, domain in space.domains.items():
            _parameter(path, domain)
        self._check_strategy()
        if all(domain.size == 1 for domain in space.domains.values()):
            raise ConfigurationError("AxSearcher: the space has no domain to choose from, only constants")

    def _check_strategy(self) -> None:
        """Check that a strategy of the user's is new: it counts the trials of the experiment that it serves.

        Raises:
            ConfigurationError: it is another experiment's.
        """
        if self._given is None and self._strategy not in METHODS and _serves(self._strategy):
            raise ConfigurationError(
                f"AxSearcher: the generation strategy {self._strategy.name} is another experiment's or Client's; give "
                "strategy.clone_reset()"
            )

    def check_objective(self, objective: Objective) -> None:
        """Check that constraints are of other metrics than the one that is optimised."""
        super().check_objective(objective)
        shown = " and ".join(map(str, objective.constraints))
        if self._given is not None:
            if objective.constraints:
                raise ConfigurationError(
                    f"AxSearcher: a Client has outcome constraints of its own; leave {shown} out of metric=, or the Client"
                )
            check_objective(objective, self._given)
            return
        self._constrained = list(dict.fromkeys(each.metric for each in objective.constraints))
        if objective.is_single and objective.metrics[0] in self._constrained:
            raise ConfigurationError(
                f"AxSearcher: {shown}: there is a bound on {objective}, the one metric that is optimised, which Ax refuses"
            )

    @property
    def can_learn(self) -> bool:
        """Whether it learns from trials elsewhere, of which nobody knows what a Client constrains."""
        return not self._constrained

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Make the client.

        Raises:
            ConfigurationError: this searcher, or its strategy, is another experiment's.
        """
        if self._bound is None:
            self._check_strategy()
        super().bind(space, seed, metric=metric, mode=mode)

    def _begin_model(self, seed: int) -> None:
        objective, domains = self._objective, self._space.domains
        # By Ax's names: not all can stand in an objective of Ax's.
        metrics = dict.fromkeys([*objective.metrics, *self._constrained])
        self._names = {metric: metric if self._given else f"metric{number}" for number, metric in enumerate(metrics)}
        self._own_seed = random.Random(seed).getrandbits(31)
        #: None where Ax has the values as they are.
        self._parameters = {
            path: _parameter(path, domain) if self._given is None else None for path, domain in domains.items()
        }
        self._client = self._configured(objective) if self._given is None else self._copied(self._given)
        self._experiment = experiment_of(self._client)
        for message in _WARNINGS if not objective.is_single else ():
            # For good, as they come in another thread later.
            warnings.filterwarnings("ignore", message, module=r"ax\.")
        if self._strategy not in METHODS:
            self._strategy.experiment = self._experiment

    def _configured(self, objective: Objective) -> Client:
        """Return a client for the experiment."""
        client = Client()
        known = {path: each for path, each in self._parameters.items() if each is not None}
        client.configure_experiment([_range(path, each) for path, each in known.items()], name="mqtune")
        client.configure_optimization(
            ", ".join(
                _SIGNS[mode] + self._names[metric]
                for metric, mode in zip(objective.metrics, objective.modes, strict=True)
            ),
            [f"{self._names[each.metric]} {each.relation} {each.bound!r}" for each in objective.constraints] or None,
        )
        return client

    def _copied(self, given: Client) -> Client:
        """Return a copy of the user's client, which saves nothing: a driver that resumes begins with the same again."""
        client = Client()
        experiment, strategy = copy.deepcopy((experiment_of(given), strategy_of(given)))
        client.set_experiment(experiment)
        if strategy is not None:
            client.set_generation_strategy(strategy)
            self._strategy = strategy
        return client

    @property
    def client(self) -> Client:
        """Ax's client, with all that it was told; for analyses, after the experiment."""
        self._send()
        return self._client

    @property
    def experiment(self) -> Any:
        """Ax's experiment of that client; for analyses that take one."""
        self._send()
        return self._experiment

    def learn(self, trial: PastTrial) -> None:
        """Attach a trial that has ended, which counts among those that come before there is a model."""
        is_end = trial.status is TrialStatus.COMPLETED and trial.step <= 1
        record = _Record(trial.config, self._begun(trial.config), trial.step, (trial.value,), is_end=is_end)
        self._tell(record, trial.status)

    def _ask(self) -> _Record | Literal[Later.WAIT] | None:
        """Return Ax's next config; None if it has no more, and WAIT while its strategy needs more results.

        Raises:
            ConfigurationError: its strategy needs results, and no trial runs that could bring one.
        """
        if len(self._tried) == self._space.size:
            # Ax would draw thousands of configs before it says so.
            return None
        self._send()
        try:
            run = self._asked_of_ax()
        except (GenerationStrategyRepeatedPoints, SearchSpaceExhausted, OptimizationComplete):
            return None
        except (DataRequiredError, MaxParallelismReachedException) as error:
            if not self._experiment.trials_by_status[Status.RUNNING]:
                raise ConfigurationError(
                    f"AxSearcher: Ax suggests nothing more without further results: {error}"
                ) from error
            return WAIT
        params = run.arms[0].parameters.items()
        values = {path: known.to_value(each) if (known := self._parameters[path]) else each for path, each in params}
        config = self._space.config_of(values)
        return _Record(config, self._begun(config, None if self._strategy in METHODS else run))

    def _asked_of_ax(self) -> Any:
        strategy = self._named_strategy() if self._strategy in METHODS else self._strategy
        telling = self._telling_values() if self._strategy in METHODS else contextlib.nullcontext()
        with quiet(), one_thread(), uncompiled(), telling, with_rng_seed(self._own_seed + len(self._experiment.trials)):
            ((run,),) = strategy.gen(self._experiment, n=1)
        return run

    @contextlib.contextmanager
    def _telling_values(self) -> Iterator[None]:
        """Have Ax not see the values before the first time at which trials differ, once trials are stopped.

        Most are stopped at the first rung. Where they are still alike there, a model of all values takes the space for flat, and
        suggests its corners.
        """
        data = self._experiment.data
        if self._experiment.trials_by_status[Status.EARLY_STOPPED]:
            rows = rows_of(data)
            first = _first_telling(rows)
            self._experiment.data = Data(data_rows=[row for row in rows if not _step_of(row) < first])
        try:
            yield
        finally:
            self._experiment.data = data

    def _named_strategy(self) -> Any:
        """Return the strategy that Ax has a name for, as it is after as many trials as there are.

        It is a new one each time, as what one keeps from before, such as the last model, is lost with its driver.
        """
        stopped = len(self._experiment.trials_by_status[Status.EARLY_STOPPED])
        with quiet():
            self._client.configure_generation_strategy(
                method=self._strategy,
                initialization_random_seed=self._own_seed,
                # Only the first trial tries the centre; Ax would go no further than to the Sobol sequence after it.
                initialize_with_center=not self._experiment.trials,
                # Ax counts completed trials alone, and a scheduler may stop them all before.
                min_observed_initialization_trials=max(_OBSERVED - stopped, 0),
                allow_exceeding_initialization_budget=True,
            )
        strategy = cast("GenerationStrategy", strategy_of(self._client))
        for node in strategy.nodes_by_name.values():
            self._place(node, over_time=bool(stopped))
        return strategy

    def _place(self, node: Any, *, over_time: bool) -> None:
        """Have a new node of a strategy go on with the Sobol sequence behind what was taken of it.

        Args:
            node: the node.
            over_time: whether its model is to have each trial's values at all times, and not the last one alone.
        """
        place = {"seed": self._own_seed, "init_position": len(self._experiment.trials)}
        for spec in node.generator_specs:
            if spec.generator_enum is Generators.SOBOL:
                spec.generator_kwargs |= place
            elif over_time:
                spec.generator_kwargs["data_loader_config"] = DataLoaderConfig(latest_rows_per_group=None)
        # What is asked where a model repeats itself. Ax has one for all strategies of a process, without a seed.
        spec = GeneratorSpec(Generators.SOBOL, place, generator_key_override="Fallback_Sobol")
        node.fallback_specs = dict.fromkeys(node.fallback_specs, spec)

    def _begin(self, config: Config) -> _Record:
        return _Record(config, self._begun(config))

    def _begun(self, config: Config, run: Any = None) -> Any:
        """Begin a trial of Ax's; none for a config outside the space.

        Args:
            config: its config.
            run: what the user's strategy has suggested, by which it counts its trials.
        """
        self._tried.add(fingerprint(config))
        if run is None:
            try:
                values = self._space.values(config)
            except SpaceError:
                return None
            parameters: dict[str, Any] = {
                path: each.to_param(values[path]) if each else values[path] for path, each in self._parameters.items()
            }
            with quiet():
                return self._experiment.trials[self._client.attach_trial(parameters)]
        begun = self._experiment.new_trial(run)
        return begun.mark_running(no_runner_required=True)

    def _go_on(self, record: _Record) -> None:
        if record.trial is not None and record.trial.status is not Status.RUNNING:
            record.trial.mark_running(no_runner_required=True, unsafe=True)

    def _hear(self, record: _Record, step: int | None, metrics: Metrics) -> None:
        """Learn a report's metrics; those at the highest step count."""
        values = [value for name in self._names if is_number(value := metrics.get(name))]
        is_whole = len(values) == len(self._names)
        if record.trial is not None and is_whole and step is not None and step >= max(record.step, 0):
            record.step, record.values = step, tuple(map(float, values))
            if record.is_due:
                self._note(record)

    def _note(self, record: _Record) -> None:
        """Have Ax told of a record's newest values."""
        if record.has_diverged:
            return
        trial, record.told = record.trial, record.step
        time = record.step if self._given else math.log2(1 + record.step)
        step = math.nan if record.is_end else time
        for name, value in zip(self._names.values(), record.values, strict=True):
            signature = self._experiment.metrics[name].signature
            self._untold.append(DataRow(trial.index, trial.arm.name, name, signature, value, math.nan, step=step))

    def _send(self) -> None:
        """Tell Ax of the values that it hasn't."""
        if self._untold:
            self._experiment.attach_data(Data(data_rows=self._untold))
            self._untold = []

    def on_trial_end(self, trial: Trial) -> None:
        """Learn how it has ended.

        Raises:
            ConfigurationError: it has completed and never reported a metric that is constrained.
        """
        if trial.status is TrialStatus.COMPLETED and self._constrained and not self._records[trial.id].values:
            self._check_reported(trial)
        super().on_trial_end(trial)

    def _check_reported(self, trial: Trial) -> None:
        missing = [metric for metric in self._constrained if not is_number(trial.last_metrics.get(metric))]
        if missing and trial.reports:
            raise ConfigurationError(
                f"AxSearcher: there are constraints on {names_in_words(self._constrained)}, and trial {trial.id} has completed with no "
                f"report that has {missing[0]!r} beside what is optimised; its last one has {', '.join(sorted(trial.last_metrics))}"
            )

    def _tell(self, record: _Record, status: TrialStatus) -> None:
        if record.trial is None:
            return
        if record.told < record.step:
            self._note(record)
        self._send()
        if record.has_diverged and status is not TrialStatus.FAILED:
            ended = Status.ABANDONED
        else:
            ended = (_STATUSES if record.has_data else _STATUSES_WITHOUT_DATA)[status]
        record.trial.mark_as(ended, unsafe=True)

    def _model(self) -> Description:
        """Return the strategy's name; a strategy of the user's own can't be made again from that."""
        if self._given is not None:
            return {"strategy": "of a Client"}
        return {"strategy": str(self._strategy if self._strategy in METHODS else self._strategy.name)}

    @classmethod
    def from_arguments(cls, arguments: Description) -> AxSearcher:
        """Return one with a strategy that Ax has a name for.

        Raises:
            ConfigurationError: it had a strategy of its own.
        """
        if (strategy := arguments.get("strategy", METHODS[0])) not in METHODS:
            raise ConfigurationError(
                f"the searcher had the generation strategy {strategy}, which only your code can make: give searcher=AxSearcher(…)"
            )
        return super().from_arguments(arguments)


def _serves(strategy: GenerationStrategy) -> bool:
    """Whether a strategy has an experiment already."""
    try:
        return strategy.experiment is not None
    except ValueError:
        return False


def _first_telling(rows: Sequence[DataRow]) -> float:
    """Return the first time at which trials differ, by the standard deviation of the first metric; 0 if that can't be known."""
    values: dict[float, list[float]] = {}
    for row in rows:
        if row.metric_name == rows[0].metric_name and not math.isnan(step := _step_of(row)):
            values.setdefault(step, []).append(row.mean)
    spreads = {step: statistics.pstdev(values[step]) for step in sorted(values) if len(values[step]) >= _SPREAD_OF}
    most = max(spreads.values(), default=0.0)
    return next((step for step, spread in spreads.items() if spread >= _TELLING * most), 0.0)


def _parameter(path: str, domain: Domain) -> Parameter:
    """Return a domain as Ax sees it.

    Ax models values between 0 and 1 anyway, and refuses ranges that are small or far from 0: intervals are shares of what is sampled.

    Raises:
        ConfigurationError: it is a domain of the user's own, or a choice of others.
    """
    if isinstance(domain, Entries):
        raise ConfigurationError(f"AxSearcher: {path}: {domain} is a domain that Ax has nothing like")
    return shares(domain) if isinstance(domain, Interval) else parameter(f"AxSearcher: {path}", "Ax", domain)


def _step_of(row: DataRow) -> float:
    return math.nan if row.step is None else row.step


def _range(path: str, known: Parameter) -> RangeParameterConfig | ChoiceParameterConfig:
    if known.kind is Kind.INTERVAL:
        return RangeParameterConfig(path, (known.low, known.high), "float")
    if known.kind is Kind.STEPS:
        if known.low == known.high:
            return ChoiceParameterConfig(path, [known.low], "int")
        return RangeParameterConfig(path, (known.low, known.high), "int", scaling="log" if known.log else "linear")
    # Their places, as Ax's choices may be numbers and texts only.
    return ChoiceParameterConfig(path, list(range(known.high + 1)), "int", is_ordered=known.kind is Kind.ORDERED)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Have Ax not say what it does in this thread, and works around by itself: a user never sees its client."""
    thread = threading.get_ident()

    def lets_pass(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.levelno >= logging.ERROR

    ROOT_STREAM_HANDLER.addFilter(lets_pass)
    try:
        yield
    finally:
        ROOT_STREAM_HANDLER.removeFilter(lets_pass)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Have PyTorch use one thread: several wait for each other, and take many times as long, where trials keep the cores busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
