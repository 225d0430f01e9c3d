"""Ax's generation strategies as a searcher."""

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
    importing,
    is_number,
    names_in_words,
    parameter,
    shares,
    with_hints,
)
from mqtune.search import WAIT, PastTrial


@contextlib.contextmanager
def _without_note() -> Iterator[None]:
    """Within the block, silence Ax's note on its choice of database, which it logs on import."""
    database = logging.getLogger("ax.storage.sqa_store.with_db_settings_base")
    database.addFilter(reject := lambda _: False)
    try:
        yield
    finally:
        database.removeFilter(reject)


with importing("Ax", "ax"), _without_note():
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
    from mqtune.integrations.ax_space import check_alike, check_objective, constrained_metrics

METHODS: Final = ("fast", "quality", "random_search")
_SIGNS: Final = {"min": "-", "max": ""}
#: Ax warns about its own code, and about missing thresholds, at each suggestion.
_WARNINGS: Final = ("To copy construct from a tensor", "Encountered a `MultiObjective` without objective thresholds")
#: Values are hidden up to the first time at which they spread by this share of their widest spread.
_TELLING: Final = 0.5
#: How many values a spread needs, as in Syne Tune's MOBSTER.
_SPREAD_OF: Final = 3
#: How many ended trials the model needs: Ax's default for five initial trials.
_OBSERVED: Final = 2
#: Ax's statuses of ended and paused trials.
STATUSES: Final = {
    TrialStatus.COMPLETED: Status.COMPLETED,
    TrialStatus.EARLY_STOPPED: Status.EARLY_STOPPED,
    TrialStatus.PAUSED: Status.EARLY_STOPPED,
    TrialStatus.FAILED: Status.FAILED,
    TrialStatus.ABANDONED: Status.ABANDONED,
}
#: The same for trials without data, which Ax can't have as completed or stopped.
_STATUSES_WITHOUT_DATA: Final = {
    **STATUSES,
    TrialStatus.COMPLETED: Status.FAILED,
    TrialStatus.EARLY_STOPPED: Status.ABANDONED,
    TrialStatus.PAUSED: Status.FAILED,
}


@dataclass(slots=True)
class _AxRecord(Record):
    """A trial with its newest values, and its Ax trial or None for a config outside the space."""

    trial: Any
    step: int = -1
    values: tuple[float, ...] = ()
    #: The step of the last values that were sent or queued for Ax; -1 before any.
    told: int = -1
    #: Whether only its end is known. Ax then assumes the latest step of all trials.
    is_end: bool = False

    @property
    def has_data(self) -> bool:
        return self.told >= 0

    @property
    def is_due(self) -> bool:
        """Whether its values should be sent: its step crosses a power of two, or was reported again."""
        return not self.has_data or self.step == self.told or self.step.bit_length() > self.told.bit_length()

    @property
    def has_diverged(self) -> bool:
        return not all(map(math.isfinite, self.values))


class AxSearcher(ModelSearcher[_AxRecord]):
    """Proposes Ax's suggestions: the centre, four Sobol points, then a Gaussian process.

    **Resume.** Ax's ``Client`` is only a model in memory. A resumed driver rebuilds it from the journal, without asking
    Ax for these suggestions again. A named strategy then suggests the same as without the interruption. Your own
    strategy restarts at its first node, unless its criteria count all trials.

    **Statuses.** In Ax a trial is RUNNING until it ends, also while it is lost and rerun. Then it is COMPLETED or
    EARLY_STOPPED (also while paused), with the value at its last step; FAILED; or ABANDONED, which is never suggested
    again. Without a value, completed and paused trials are FAILED, and stopped ones are ABANDONED. A trial whose last
    value is not finite is ABANDONED, too.

    **Values.** Ax gets values at the steps 1, 2, 4, 8 and so on, and the last one. Once trials were stopped or paused,
    named strategies model config and logarithmic time together, and suggest for the latest time of any trial, as
    MOBSTER does. Otherwise Ax models last values. Early values are hidden as long as trials hardly differ.

    **Constraints.** Ax models outcome constraints on other metrics, and with several objectives also on optimised ones.
    Suggestions may violate them. A ``Client`` uses its own constraints instead.

    With several metrics Ax searches their Pareto front. A report counts only with all optimised and constrained
    metrics.

    Requires ax-platform 1.3 or later. Sources: Balandat et al., "BoTorch: A Framework for Efficient Monte-Carlo
    Bayesian Optimization", 2020; Klein et al., "Model-based Asynchronous Hyperparameter and Neural Architecture
    Search", arXiv:2003.10865, section 4.

    Args:
        strategy: "fast" for a Gaussian process; "quality" for one with a sparse prior and warped inputs, many times
            slower; "random_search" for Sobol points; a new ``GenerationStrategy``; or a configured ``Client``, which is
            copied with its space (``ax_space.space_of``), constraints, trials, and generation strategy (or "fast").
        seed: None for the experiment's.

    Raises:
        ConfigurationError: Ax is not installed, *strategy* or a constraint is invalid, the strategy belongs to another
            experiment, the space has nothing to choose, or a trial has completed without a constrained metric.
    """

    kind = "ax"

    @with_hints(OF_OBJECTIVE, {})
    def __init__(self, strategy: Any = "fast", *, seed: int | None = None) -> None:
        if strategy not in METHODS and not isinstance(strategy, GenerationStrategy | Client):
            raise ConfigurationError(
                f"AxSearcher: strategy={strategy!r:.80} is neither one of {', '.join(METHODS)} nor a "
                "GenerationStrategy or a Client of Ax"
            )
        super().__init__(seed)
        self._given = strategy if isinstance(strategy, Client) else None
        self._constrained: list[str] = []
        if self._given is not None:
            self._constrained = constrained_metrics(self._given)
            strategy = strategy_of(self._given) or METHODS[0]
        self._strategy = strategy
        #: Values to send. Each sending takes milliseconds, so they are sent together.
        self._unsent: list[DataRow] = []
        self._tried: set[str] = set()

    def check_space(self, space: Space) -> None:
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
        """Check that the user's strategy is new, since a strategy counts its trials."""
        if self._given is None and self._strategy not in METHODS and _is_in_use(self._strategy):
            raise ConfigurationError(
                f"AxSearcher: the generation strategy {self._strategy.name} is another experiment's or Client's; give "
                "strategy.clone_reset()"
            )

    def check_objective(self, objective: Objective) -> None:
        super().check_objective(objective)
        shown = " and ".join(map(str, objective.constraints))
        if self._given is not None:
            if objective.constraints:
                raise ConfigurationError(
                    f"AxSearcher: a Client has outcome constraints of its own; leave {shown} out of metric=, or the "
                    "Client"
                )
            check_objective(objective, self._given)
            return
        self._constrained = list(dict.fromkeys(constraint.metric for constraint in objective.constraints))
        if objective.is_single and objective.metrics[0] in self._constrained:
            raise ConfigurationError(
                f"AxSearcher: {shown}: there is a bound on {objective}, the one metric that is optimised, which Ax "
                "refuses"
            )

    @property
    def can_learn(self) -> bool:
        """Whether it can learn from past trials.

        With constraints it can't, as past trials may lack a constrained metric.
        """
        return not self._constrained

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Create Ax's client."""
        if self._bound is None:
            self._check_strategy()
        super().bind(space, seed, metric=metric, mode=mode)

    def _begin_model(self, seed: int) -> None:
        objective, domains = self._objective, self._space.domains
        # Ax gets other names, as some metrics have names that are invalid in its objectives.
        metrics = dict.fromkeys([*objective.metrics, *self._constrained])
        self._names = {metric: metric if self._given else f"metric{number}" for number, metric in enumerate(metrics)}
        self._own_seed = random.Random(seed).getrandbits(31)
        #: The form of each parameter in Ax; None where Ax has the same values.
        self._parameters = {
            path: _parameter(path, domain) if self._given is None else None for path, domain in domains.items()
        }
        self._client = self._new_client(objective) if self._given is None else self._copy_client(self._given)
        self._experiment = experiment_of(self._client)
        for message in _WARNINGS if not objective.is_single else ():
            # Not only for a block, as Ax issues them later, from another thread.
            warnings.filterwarnings("ignore", message, module=r"ax\.")
        if self._strategy not in METHODS:
            self._strategy.experiment = self._experiment

    def _new_client(self, objective: Objective) -> Client:
        client = Client()
        known = {path: parameter for path, parameter in self._parameters.items() if parameter is not None}
        client.configure_experiment([_ax_config(path, parameter) for path, parameter in known.items()], name="mqtune")
        client.configure_optimization(
            ", ".join(
                _SIGNS[mode] + self._names[metric]
                for metric, mode in zip(objective.metrics, objective.modes, strict=True)
            ),
            [
                f"{self._names[constraint.metric]} {constraint.relation} {constraint.bound!r}"
                for constraint in objective.constraints
            ]
            or None,
        )
        return client

    def _copy_client(self, given: Client) -> Client:
        """Copy the user's client. The original stays as it is, for a resumed driver."""
        client = Client()
        experiment, strategy = copy.deepcopy((experiment_of(given), strategy_of(given)))
        client.set_experiment(experiment)
        if strategy is not None:
            client.set_generation_strategy(strategy)
            self._strategy = strategy
        return client

    @property
    def client(self) -> Client:
        """Ax's client with all results, for later analyses."""
        self._send_values()
        return self._client

    @property
    def experiment(self) -> Any:
        """Ax's experiment with all results, for later analyses."""
        self._send_values()
        return self._experiment

    def learn(self, trial: PastTrial) -> None:
        """Add an ended trial of another experiment. It counts among the initial trials."""
        is_end = trial.status is TrialStatus.COMPLETED and trial.step <= 1
        record = _AxRecord(trial.config, self._begin_in_ax(trial.config), trial.step, (trial.value,), is_end=is_end)
        self._tell(record, trial.status)

    def _ask(self) -> _AxRecord | Literal[Later.WAIT] | None:
        """Return Ax's next config: None if there are no more, WAIT while Ax needs results."""
        if len(self._tried) == self._space.size:
            # Ax would draw thousands of configs first.
            return None
        self._send_values()
        try:
            run = self._generate()
        except (GenerationStrategyRepeatedPoints, SearchSpaceExhausted, OptimizationComplete):
            return None
        except (DataRequiredError, MaxParallelismReachedException) as error:
            if not self._experiment.trials_by_status[Status.RUNNING]:
                raise ConfigurationError(
                    f"AxSearcher: Ax suggests nothing more without further results: {error}"
                ) from error
            return WAIT
        params = run.arms[0].parameters.items()
        values = {path: known.to_value(param) if (known := self._parameters[path]) else param for path, param in params}
        config = self._space.config_of(values)
        return _AxRecord(config, self._begin_in_ax(config, None if self._strategy in METHODS else run))

    def _generate(self) -> Any:
        strategy = self._named_strategy() if self._strategy in METHODS else self._strategy
        late_values = self._without_early_values() if self._strategy in METHODS else contextlib.nullcontext()
        with (
            quiet(),
            one_thread(),
            uncompiled(),
            late_values,
            with_rng_seed(self._own_seed + len(self._experiment.trials)),
        ):
            ((run,),) = strategy.gen(self._experiment, n=1)
        return run

    @contextlib.contextmanager
    def _without_early_values(self) -> Iterator[None]:
        """Within the block, hide values from before trials differ, if trials were stopped early.

        Most trials stop at the first rung. If they hardly differ there, a model finds the space flat and suggests its
        corners.
        """
        data = self._experiment.data
        if self._experiment.trials_by_status[Status.EARLY_STOPPED]:
            rows = rows_of(data)
            first = _first_differing(rows)
            self._experiment.data = Data(data_rows=[row for row in rows if not _step_of(row) < first])
        try:
            yield
        finally:
            self._experiment.data = data

    def _named_strategy(self) -> Any:
        """Return a new strategy of the named kind, positioned after the existing trials.

        The state of a reused one, such as its last model, would be lost with the driver.
        """
        stopped = len(self._experiment.trials_by_status[Status.EARLY_STOPPED])
        with quiet():
            self._client.configure_generation_strategy(
                method=self._strategy,
                initialization_random_seed=self._own_seed,
                # Only the first trial tries the centre. With a centre, Ax would stay at the Sobol sequence.
                initialize_with_center=not self._experiment.trials,
                # Ax counts only completed trials, but a scheduler may stop all of them.
                min_observed_initialization_trials=max(_OBSERVED - stopped, 0),
                allow_exceeding_initialization_budget=True,
            )
        strategy = cast("GenerationStrategy", strategy_of(self._client))
        for node in strategy.nodes_by_name.values():
            self._position(node, over_time=bool(stopped))
        return strategy

    def _position(self, node: Any, *, over_time: bool) -> None:
        """Position a new node in the Sobol sequence.

        With *over_time*, the node's model gets values at all times.
        """
        place = {"seed": self._own_seed, "init_position": len(self._experiment.trials)}
        for spec in node.generator_specs:
            if spec.generator_enum is Generators.SOBOL:
                spec.generator_kwargs |= place
            elif over_time:
                spec.generator_kwargs["data_loader_config"] = DataLoaderConfig(latest_rows_per_group=None)
        # For models that suggest a config again. Ax's own fallback is global and has no seed.
        spec = GeneratorSpec(Generators.SOBOL, place, generator_key_override="Fallback_Sobol")
        node.fallback_specs = dict.fromkeys(node.fallback_specs, spec)

    def _begin(self, config: Config) -> _AxRecord:
        return _AxRecord(config, self._begin_in_ax(config))

    def _begin_in_ax(self, config: Config, run: Any = None) -> Any:
        """Begin a trial in Ax and return it, or None for a config outside the space.

        It begins from *run*, which the user's strategy has generated, or else from *config*.
        """
        self._tried.add(fingerprint(config))
        if run is None:
            try:
                values = self._space.values(config)
            except SpaceError:
                return None
            parameters: dict[str, Any] = {
                path: parameter.to_param(values[path]) if parameter else values[path]
                for path, parameter in self._parameters.items()
            }
            with quiet():
                return self._experiment.trials[self._client.attach_trial(parameters)]
        begun = self._experiment.new_trial(run)
        return begun.mark_running(no_runner_required=True)

    def _go_on(self, record: _AxRecord) -> None:
        if record.trial is not None and record.trial.status is not Status.RUNNING:
            record.trial.mark_running(no_runner_required=True, unsafe=True)

    def _hear(self, record: _AxRecord, step: int | None, metrics: Metrics) -> None:
        """Record a report's metrics. A report with a lower step than an earlier one is ignored."""
        values = [value for name in self._names if is_number(value := metrics.get(name))]
        is_whole = len(values) == len(self._names)
        if record.trial is not None and is_whole and step is not None and step >= max(record.step, 0):
            record.step, record.values = step, tuple(map(float, values))
            if record.is_due:
                self._queue_values(record)

    def _queue_values(self, record: _AxRecord) -> None:
        if record.has_diverged:
            return
        trial, record.told = record.trial, record.step
        time = record.step if self._given else math.log2(1 + record.step)
        step = math.nan if record.is_end else time
        for name, value in zip(self._names.values(), record.values, strict=True):
            signature = self._experiment.metrics[name].signature
            self._unsent.append(DataRow(trial.index, trial.arm.name, name, signature, value, math.nan, step=step))

    def _send_values(self) -> None:
        if self._unsent:
            self._experiment.attach_data(Data(data_rows=self._unsent))
            self._unsent = []

    def on_trial_end(self, trial: Trial) -> None:
        """Record a trial's end.

        Raises:
            ConfigurationError: it has completed without a constrained metric.
        """
        if trial.status is TrialStatus.COMPLETED and self._constrained and not self._records[trial.id].values:
            self._check_reported(trial)
        super().on_trial_end(trial)

    def _check_reported(self, trial: Trial) -> None:
        missing = [metric for metric in self._constrained if not is_number(trial.last_metrics.get(metric))]
        if missing and trial.reports:
            raise ConfigurationError(
                f"AxSearcher: there are constraints on {names_in_words(self._constrained)}, but trial {trial.id} has "
                f"completed without a report that has {missing[0]!r} and all optimised metrics; its last report has "
                f"{', '.join(sorted(trial.last_metrics))}"
            )

    def _tell(self, record: _AxRecord, status: TrialStatus) -> None:
        if record.trial is None:
            return
        if record.told < record.step:
            self._queue_values(record)
        self._send_values()
        if record.has_diverged and status is not TrialStatus.FAILED:
            ended = Status.ABANDONED
        else:
            ended = (STATUSES if record.has_data else _STATUSES_WITHOUT_DATA)[status]
        record.trial.mark_as(ended, unsafe=True)

    def _model(self) -> Description:
        """Return the strategy's name for the definition. It can't restore a strategy of the user's own."""
        if self._given is not None:
            return {"strategy": "of a Client"}
        return {"strategy": str(self._strategy if self._strategy in METHODS else self._strategy.name)}

    @classmethod
    def from_arguments(cls, arguments: Description) -> AxSearcher:
        """Return a searcher with a named strategy. Refuse one with a strategy of the user's own."""
        if (strategy := arguments.get("strategy", METHODS[0])) not in METHODS:
            raise ConfigurationError(
                f"the searcher had the generation strategy {strategy}, which only your code can make: give "
                "searcher=AxSearcher(…)"
            )
        return super().from_arguments(arguments)


def _is_in_use(strategy: GenerationStrategy) -> bool:
    try:
        return strategy.experiment is not None
    except ValueError:
        return False


def _first_differing(rows: Sequence[DataRow]) -> float:
    """Return the first time at which trials differ, by standard deviation. It is 0 if unknown."""
    values: dict[float, list[float]] = {}
    for row in rows:
        if row.metric_name == rows[0].metric_name and not math.isnan(step := _step_of(row)):
            values.setdefault(step, []).append(row.mean)
    spreads = {step: statistics.pstdev(values[step]) for step in sorted(values) if len(values[step]) >= _SPREAD_OF}
    most = max(spreads.values(), default=0.0)
    return next((step for step, spread in spreads.items() if spread >= _TELLING * most), 0.0)


def _parameter(path: str, domain: Domain) -> Parameter:
    """Return a domain in the form that Ax gets.

    Intervals become shares between 0 and 1, as Ax refuses small or remote ranges.
    """
    if isinstance(domain, Entries):
        raise ConfigurationError(f"AxSearcher: {path}: {domain} is a domain that Ax has nothing like")
    return shares(domain) if isinstance(domain, Interval) else parameter(f"AxSearcher: {path}", "Ax", domain)


def _step_of(row: DataRow) -> float:
    return math.nan if row.step is None else row.step


def _ax_config(path: str, known: Parameter) -> RangeParameterConfig | ChoiceParameterConfig:
    if known.kind is Kind.INTERVAL:
        return RangeParameterConfig(path, (known.low, known.high), "float")
    if known.kind is Kind.STEPS:
        if known.low == known.high:
            return ChoiceParameterConfig(path, [known.low], "int")
        return RangeParameterConfig(path, (known.low, known.high), "int", scaling="log" if known.log else "linear")
    # By positions of the options, as Ax's choices are numbers or texts.
    return ChoiceParameterConfig(path, list(range(known.high + 1)), "int", is_ordered=known.kind is Kind.ORDERED)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within the block, silence Ax's messages below ERROR in this thread."""
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
    """Within the block, limit PyTorch to one thread.

    While trials use the cores, several threads are many times slower.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
