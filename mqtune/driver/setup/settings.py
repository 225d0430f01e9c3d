"""The settings of an experiment: a tuner's checked arguments, and values derived from them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, InitVar, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self, cast

from mqtune.core.checks import positive
from mqtune.core.errors import ConfigurationError, TrainableNotFound
from mqtune.core.experiment import Experiment
from mqtune.core.keys import is_name
from mqtune.core.objective import Metric, Modes, Objective
from mqtune.core.resources import Resources
from mqtune.core.submission import this_submission
from mqtune.driver.setup.by_config import AnyResources, ResourcesByConfig
from mqtune.driver.setup.options import (
    NOT_KEPT,
    Checked,
    Checkpoints,
    Failures,
    Process,
    RunOptions,
    changeable,
    count_from,
    option,
)
from mqtune.driver.setup.ports import CheckDeployment, MakeProject, ProgramFiles
from mqtune.journal.base import OnLoss
from mqtune.results.warm_start import WarmStart
from mqtune.schedulers.asha import ASHA
from mqtune.schedulers.base import FIFO, Decider, Scheduler
from mqtune.schedulers.moasha import MOASHA
from mqtune.schedulers.stopping.rule import StopRule, as_rule
from mqtune.search.base import TPE, Searcher, is_searcher_name, searcher_named
from mqtune.search.model import MODELLED
from mqtune.search.points import InitialPoints, Nobody
from mqtune.search.random import RandomSearcher
from mqtune.search.repeater import Repeater
from mqtune.search.space import SEPARATOR, AnySpace, Space
from mqtune.trainable.cells import Carried, Cell, cell_of
from mqtune.trainable.class_ import check_reusable
from mqtune.trainable.script_arguments import ArgumentTemplate
from mqtune.trainable.spec import AnyTrainable, Function, TrainableSpec, TrainableStays

logger = logging.getLogger(__name__)


class KnownTrainable(NamedTuple):
    """A trainable as a definition has it: by its name and its folder."""

    spec: TrainableSpec
    #: The folder below which the trainable was found.
    code_root: Path
    #: The generated module of a trainable that is in no file, as in a notebook.
    cell: Cell | None = None
    #: The trainable itself, if it can't be sent to another process. Then only forks of this process can run it.
    carried: Carried | None = None

    @classmethod
    def of(cls, trainable: AnyTrainable) -> Self:
        """Find the name and folder of a function, class, script or callable object.

        Raises:
            TrainableNotFound: the object can't be a trainable.
        """
        try:
            cell = cell_of(trainable)
            return cls(*TrainableSpec.of(trainable)) if cell is None else cls(cell.spec, cell.code_root, cell)
        except TrainableStays as problem:
            carried = Carried.of(cast("Function", trainable), str(problem))
            return cls(carried.spec, carried.code_root, carried=carried)


class HasLocalSlots(Protocol):
    """The part of a deployment that settings need."""

    @property
    def local_slots(self) -> int | None:
        """Number of slots that the user wants on this machine. None: no wish, or a broker."""

    @property
    def has_own_worker(self) -> bool:
        """Whether trials run on this machine alone, on a worker that the driver starts."""


@dataclass(frozen=True, kw_only=True)
class Settings(Checked):
    """The arguments of ``Tuner`` under the same names, checked and with defaults filled in.

    Create them with ``of``.

    Args:
        make_project: makes the bundle of files for workers. None if this place can send no code.

    Raises:
        ConfigurationError: an argument is invalid, or arguments contradict each other.
        TrainableNotFound: no worker could import the trainable.
    """

    trainable: AnyTrainable | KnownTrainable = field(metadata=NOT_KEPT)
    # The fields of ``KnownTrainable``.
    spec: TrainableSpec = field(metadata=NOT_KEPT)
    code_root: Path = field(metadata=NOT_KEPT)
    cell: Cell | None = field(metadata=NOT_KEPT)
    carried: Carried | None = field(metadata=NOT_KEPT)
    space: Space = field(metadata=NOT_KEPT)
    metric: Metric
    mode: Modes
    #: None: as many as the searcher has configs.
    max_trials: int | None = option(None, count_from(1), may_change=True)
    searcher: Searcher | WarmStart | str | None = option(None, key=None)
    scheduler: Scheduler = field(metadata=NOT_KEPT)
    max_t: float | None = option(None, lambda name, value: value is None or positive("", name, value), key=None)
    stop: StopRule | None = option(None, key=None)
    #: The resources of all trials, or a function of the config.
    resources: Resources | ResourcesByConfig = field(metadata=NOT_KEPT)
    backend: HasLocalSlots = option(
        cast("Any", MISSING), key="local_slots", may_change=True, keep=lambda place: place.local_slots
    )
    #: Empty until a default name is taken.
    name: str = field(metadata=NOT_KEPT)
    seed: int | None = option(None, count_from(0))
    failures: Failures = field(default_factory=Failures, metadata={"group": Failures})
    checkpoints: Checkpoints = field(default_factory=Checkpoints, metadata={"group": Checkpoints})
    process: Process = field(default_factory=Process, metadata={"group": Process})
    run: RunOptions = field(default_factory=RunOptions, metadata={"group": RunOptions})
    #: The files that are sent to workers. None if no code is sent.
    project: ProgramFiles | None = field(init=False, default=None, metadata=NOT_KEPT)
    #: Checks of services: whether the place can run the trials.
    checks: Sequence[CheckDeployment] = field(default=(), metadata=NOT_KEPT)
    make_project: InitVar[MakeProject | None] = None

    def __post_init__(self, make_project: MakeProject | None) -> None:
        super().__post_init__()
        for attribute in fields(self):
            group, value = attribute.metadata.get("group"), getattr(self, attribute.name)
            if group is not None and not isinstance(value, group):
                raise ConfigurationError(f"{attribute.name}={value!r}: give mqtune.{group.__name__}(…)")
        for name, kinds, example in _KINDS:
            value = getattr(self, name)
            is_named = name == "searcher" and (value is None or is_searcher_name(value))
            if not isinstance(value, kinds) and not is_named:
                raise ConfigurationError(f"{name}={value!r} is not a {kinds[0].__name__}; {example}")
        self._check_trainable()
        object.__setattr__(self, "project", self._make_project(make_project))
        self._check_call()
        if self.warm_start is not None:
            self.warm_start.check_objective(self.objective)
        self._check_searcher()
        if self.checkpoints.keep_trials > 1 and not (self.metric and self.objective.is_single):
            raise ConfigurationError(
                f"Checkpoints(keep_trials={self.checkpoints.keep_trials}) ranks trials by one metric, and this "
                f"experiment has metric={self.metric!r}; leave keep_trials out: with several metrics, "
                f"the Pareto front keeps its checkpoints"
            )
        self.scheduler.check_space(self.space)
        if self.metric or not self.is_open:
            self._bind(self.scheduler)
        if self.stop is not None:
            self._bind(self.stop)
        if self.max_trials is None:
            object.__setattr__(self, "max_trials", self._default_max_trials())

    @classmethod
    def of(
        cls,
        *,
        trainable: AnyTrainable | KnownTrainable,
        space: Mapping[str, object] | Space | None,
        metric: Metric | None,
        mode: Modes | None,
        scheduler: Scheduler | None = None,
        max_t: float | None = None,
        stop: object = None,
        resources: AnyResources | None = None,
        name: str | None = None,
        failures: Failures = Failures(),
        make_project: MakeProject | None = None,
        **others: Any,
    ) -> Self:
        """Return the settings for a tuner's arguments.

        Without a space the experiment is open: a program adds its trials. Then metric and mode may be missing too.

        Raises:
            ConfigurationError: an argument is invalid, or contradicts or needs another one.
            TrainableNotFound: no worker could import the trainable.
        """
        if space is None:
            _refuse("a space", others, "searcher", "max_trials")
            space, others["searcher"] = AnySpace(), Nobody()
        elif metric is None:
            raise ConfigurationError("metric=None: give the key in the reports whose value is to be optimised")
        if metric is None:
            given = {"mode": mode, "scheduler": scheduler, "max_t": max_t, "stop": stop}
            _refuse("a metric", given, *given)
            metric, mode, failures = "", "min", replace(failures, accept_no_report=True)
        elif mode is None:
            raise ConfigurationError(f"mode=None: give 'min' or 'max', for metric={metric!r}")
        objective = Objective.of(metric, mode)
        if isinstance(scheduler, Scheduler) and max_t is not None:
            raise ConfigurationError(
                f"max_t={max_t!r} is for the default scheduler; give it to yours: "
                f"{type(scheduler).__name__}(max_t={max_t!r}, …)"
            )
        if scheduler is None and max_t is not None:
            positive("", "max_t", max_t)
            scheduler = ASHA(max_t) if objective.is_single else MOASHA(max_t)
        known = trainable if isinstance(trainable, KnownTrainable) else KnownTrainable.of(trainable)
        if not isinstance(space, Space):
            given_space, space = space, Space(space)
            _warn_of_lists(given_space)
        if callable(resources) and not isinstance(resources, Resources):
            resources = ResourcesByConfig(resources, space)
        if name is None and (submitted := this_submission()) is not None:
            name = submitted.name
        if name is not None and not is_name(name):
            raise ConfigurationError(
                f"name={name!r} can't name an experiment; use up to 100 letters, digits, dots, dashes and underscores"
            )
        return cls(
            trainable=trainable,
            **known._asdict(),
            space=space,
            metric=metric,
            mode=mode,
            scheduler=FIFO() if scheduler is None else scheduler,
            max_t=max_t,
            stop=as_rule(stop),
            resources=Resources() if resources is None else resources,
            name=name or "",
            failures=failures,
            make_project=make_project,
            **others,
        )

    def take_name(self, name: str) -> None:
        """Set the default name, after it was reserved."""
        object.__setattr__(self, "name", name)

    # Checks.

    def _check_trainable(self) -> None:
        if self.process.reuse and not isinstance(self.trainable, KnownTrainable):
            check_reusable(self.trainable)
        carried, process = self.carried, self.process
        if carried is not None and not (
            self.backend.has_own_worker and process.start_method == "fork" and process.bundle is None
        ):
            raise TrainableNotFound(carried.why)

    def _make_project(self, make_project: MakeProject | None) -> ProgramFiles | None:
        bundle, store = self.process.bundle, self.checkpoints.store
        if bundle is None and self.cell is None:
            return None
        if make_project is None:
            raise ConfigurationError(
                f"trainable {self.spec.name!r} can't be sent to workers: define it in a file that the workers have"
            )
        return make_project(bundle, self.spec, self.code_root, [] if store is None else [store], self.cell)

    def _check_call(self) -> None:
        """Check that the space has all parameters that the script's command line uses."""
        template = ArgumentTemplate(self.spec.arguments)
        is_in_file = self.process.pass_config == "json"  # noqa: S105 - it is no password
        if template.has_fields and is_in_file:
            raise ConfigurationError(
                "process=Process(pass_config='json') passes the config in a file, but the script's command has {…} for "
                "values of the config; leave one of the two out"
            )
        if not self.is_open:
            template.check({place.partition(SEPARATOR)[0] for place in self.space.places.values()})

    def _check_searcher(self) -> None:
        searcher = self._given_or_default
        if searcher is None:
            return
        searcher.check_space(self.space)
        searcher.check_objective(self.objective)
        if searcher.wants_whole_trials and not isinstance(self.scheduler, FIFO):
            argument = "the scheduler" if self.max_t is None else "max_t"
            raise ConfigurationError(
                f"scheduler={type(self.scheduler).__name__}(…): {type(searcher).__name__} compares trials "
                f"that have run to their own end; leave {argument} out, or end trials by rules: stop=…"
            )

    def _bind(self, decider: Decider) -> None:
        """Check that a decider supports the objective, and give it the metric and mode."""
        decider.check_objective(self.objective)
        decider.bind(self.objective.metrics[0], self.objective.modes[0])

    # Derived values.

    @property
    def is_open(self) -> bool:
        """Whether the experiment has no space: a program adds trials until it ends the experiment."""
        return isinstance(self.space, AnySpace)

    @cached_property
    def objective(self) -> Objective:
        """The optimised metrics with their modes, and the outcome constraints."""
        return Objective.of(self.metric, self.mode)

    @cached_property
    def overwrites(self) -> bool:
        """Whether an existing experiment of this name is deleted first.

        When a submitted script is run again, for example on another machine, the experiment is kept.
        """
        submitted = this_submission()
        return self.run.overwrite and (submitted is None or submitted.is_first)

    @property
    def asks(self) -> ResourcesByConfig | None:
        """The function from config to resources. None if all trials have the same resources."""
        return None if isinstance(self.resources, Resources) else self.resources

    @property
    def expected(self) -> Sequence[Resources]:
        """The different resources that trials may have, all with the same number of slots."""
        return [self.resources] if isinstance(self.resources, Resources) else self.resources.expected

    def resources_for_all(self) -> Resources:
        """Return resources that fit every trial, for a machine whose slots are equal.

        Raises:
            InsufficientResources: trials need different numbers of GPUs.
        """
        return self.resources if isinstance(self.resources, Resources) else self.resources.most_needed()

    @property
    def on_loss(self) -> OnLoss:
        """The policy for workers while no driver runs."""
        return OnLoss(self.failures.on_driver_loss, float(self.failures.driver_loss_grace_s))

    @property
    def warm_start(self) -> WarmStart | None:
        """The warm start from other experiments' trials, or None."""
        return self.searcher if isinstance(self.searcher, WarmStart) else None

    def experiment(self) -> Experiment:
        """Return a new fold of the experiment, without events."""
        failures = self.failures
        return Experiment(
            self.name,
            metric=self.metric,
            mode=self.mode,
            max_failures=failures.max_failures,
            max_lost=failures.max_lost,
            accept_no_report=failures.accept_no_report,
        )

    # The searcher.

    def new_searcher(self, seed: int, described: object = None) -> Searcher:
        """Return the searcher, before its first suggestion.

        Args:
            seed: the experiment's seed.
            described: the searcher in the definition of an existing experiment. If the user has chosen no searcher,
                this one is used, even if the default is another one now.

        Raises:
            ConfigurationError: the library of that searcher is not installed.
        """
        searcher = self._given_or_default
        began_as = described.get(Searcher.role) if isinstance(described, Mapping) else None
        is_other = self._is_searched_by_default and began_as in (RandomSearcher.kind, TPE)
        if is_other and (searcher is None) is (began_as == TPE):
            searcher = searcher_named("tpe") if began_as == TPE else None
            if searcher is not None:
                searcher.check_objective(self.objective)
        if searcher is None:
            return RandomSearcher(self.space, seed)
        searcher.bind(self.space, seed, metric=self.objective.metrics[0], mode=self.objective.modes[0])
        return searcher

    @property
    def why_random(self) -> str:
        """Why TPE can't be imported, if that makes random search the default. Otherwise empty."""
        return self._default if isinstance(self._default, str) else ""

    @property
    def _is_searched_by_default(self) -> bool:
        return self.searcher is None and self.scheduler.searcher is None

    @cached_property
    def _default(self) -> Searcher | str | None:
        return self.default_searcher() if self._is_searched_by_default else None

    @cached_property
    def _given_or_default(self) -> Searcher | None:
        """The user's searcher, the scheduler's own, or the default one. None for random search."""
        given, own = self.searcher, self.scheduler.searcher
        if own is not None and given is not None:
            raise ConfigurationError(
                f"searcher={given!r}: {type(self.scheduler).__name__} proposes the configs itself; leave searcher out"
            )
        if isinstance(given, WarmStart):
            return given.searcher
        if self._is_searched_by_default:
            return self._default if isinstance(self._default, Searcher) else None
        return searcher_named(given) if isinstance(given, str) else own or given

    def default_searcher(self) -> Searcher | str | None:
        """Return TPE, None if random search is better, or the reason why TPE can't be imported."""
        size = self.space.size
        if self.space.has_grid or (size is not None and size <= (self.max_trials or 1)):
            # Random search tries all configs, and TPE would repeat good ones.
            return None
        if not all(isinstance(domain, MODELLED) for domain in self.space.domains.values()):
            return None
        try:
            return searcher_named("tpe")
        except ConfigurationError as error:
            return str(error)

    def _default_max_trials(self) -> int | None:
        """Return the default number of trials. None: as many as the searcher has configs."""
        searcher = self._given_or_default
        if searcher is None or self._is_searched_by_default:
            return max(self.space.grid_size, 1)
        if isinstance(searcher, InitialPoints | Repeater) and searcher.count is not None:
            return max(self.space.grid_size, searcher.count, 1)
        return None


_KINDS: Final[tuple[tuple[str, tuple[type, ...], str], ...]] = (
    ("scheduler", (Scheduler,), "give one of mqtune.schedulers, such as mqtune.ASHA(…), or leave it out"),
    (
        "searcher",
        (Searcher, WarmStart),
        "give one, its name (random, tpe, auto, ax) or mqtune.integrations.optuna.OptunaSearcher(…), or leave it out",
    ),
    (
        "resources",
        (Resources, ResourcesByConfig),
        "give mqtune.Resources(gpus=…, cpus=…), or a function of the config that returns that",
    ),
)
#: The options that may change when an experiment continues.
MAY_CHANGE: Final = frozenset(changeable(Settings)).union(
    ["stop", "arguments", "code_files", "code_root", "version", "bundle", "bundle_root", "bundle_is_cwd"]
)


def _refuse(missing: str, given: Mapping[str, object], *names: str) -> None:
    """Raise if one of these arguments was given: they need *missing*, such as "a space"."""
    for name in names:
        if given.get(name) is not None:
            raise ConfigurationError(f"{name}={given[name]!r} needs {missing}; give one, or leave {name} out")


def _warn_of_lists(space: Mapping[str, object]) -> None:
    """Warn if the space has a list of values. It is a constant here, and a choice elsewhere."""
    for name, value in space.items():
        if (
            isinstance(value, list)
            and all(isinstance(item, int | float | str) for item in value)
            and len(set(value)) > 1
        ):
            shown = f"{value!r:.60}"
            logger.warning(
                "the space has the list %s as %r in each trial; to try its values write mqtune.choice(%s); to keep the "
                "list without this warning write a tuple",
                shown,
                name,
                shown,
            )
