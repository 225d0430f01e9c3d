"""An experiment as its user wants it, with all values that follow from the settings before a connection is made."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence

from mqtune.core.errors import ConfigurationError, TrainableNotFound
from mqtune.core.experiment import Experiment
from mqtune.core.keys import is_name
from mqtune.core.objective import Objective
from mqtune.core.resources import Resources
from mqtune.core.submission import this_submission
from mqtune.driver.by_config import ResourcesByConfig
from mqtune.driver.ports import CheckPlan, MakeProject, Project
from mqtune.driver.screening import Reading
from mqtune.driver.settings import KnownTrainable, Limits, Settings
from mqtune.journal.base import OnLoss
from mqtune.results.warm_start import WarmStart
from mqtune.schedulers.asha import ASHA
from mqtune.schedulers.base import FIFO, Decider, Scheduler
from mqtune.schedulers.moasha import MOASHA
from mqtune.schedulers.stopping.rule import StopRule, as_rule
from mqtune.search.base import TPE, Searcher, searcher_named
from mqtune.search.model import MODELLED
from mqtune.search.points import PointsFirst
from mqtune.search.random import RandomSearcher
from mqtune.search.repeater import Repeater
from mqtune.search.space import SEPARATOR, AnySpace, Space
from mqtune.trainable.class_ import check_reusable
from mqtune.trainable.script_arguments import ArgumentTemplate

logger = logging.getLogger(__name__)


def _warn_of_lists(space: Mapping[str, object]) -> None:
    """Warn of a list of values, which is a constant here, as it is in Ray Tune, and a choice in other libraries."""
    for name, value in space.items():
        if (
            isinstance(value, list)
            and all(isinstance(each, int | float | str) for each in value)
            and len(set(value)) > 1
        ):
            shown = f"{value!r:.60}"
            logger.warning(
                "the space has the list %s as %r in each trial; to try its values write mqtune.choice(%s), to keep it "
                "a tuple",
                shown,
                name,
                shown,
            )


class Plan:
    """One experiment as its user wants it, with its settings and all values that follow from them.

    Args:
        settings: the user's settings.
        make_project: makes the project whose files are brought to workers; None where none can be.
        checks: the services' checks of the place where trials are to run.

    Raises:
        ConfigurationError: an argument is invalid, or some don't go together.
        TrainableNotFound: no worker could import the trainable.
    """

    def __init__(
        self, settings: Settings, make_project: MakeProject | None = None, checks: Sequence[CheckPlan] = ()
    ) -> None:
        self.settings = settings
        self.checks = checks
        known = settings.trainable
        if not isinstance(known, KnownTrainable):
            known = KnownTrainable.of(known)
            if settings.process.reuse:
                check_reusable(settings.trainable)
        #: The last of them is the trainable itself, if only forks of this process can run it.
        self.spec, self.code_root, cell, self.carried = known
        if self.carried is not None:
            process = settings.process
            if not settings.backend.has_own_worker or process.start_method != "fork" or process.bundle is not None:
                raise TrainableNotFound(self.carried.why)
        #: The folder that is brought to workers.
        self.project: Project | None = None
        if settings.process.bundle is not None or cell is not None:
            if make_project is None:
                raise ConfigurationError(
                    f"trainable {self.spec.name!r} can't be brought to workers here: give one from a file of theirs"
                )
            stores = [store for store in (settings.checkpoints.store,) if store is not None]
            self.project = make_project(settings.process.bundle, self.spec, self.code_root, stores, cell)
        self.space = settings.space if isinstance(settings.space, Space) else Space(settings.space)
        if not isinstance(settings.space, Space):
            _warn_of_lists(settings.space)
        self._check_call()
        given = settings.resources
        #: The resources that a config asks for. None where all trials ask for the same.
        self.asks = None if given is None or isinstance(given, Resources) else ResourcesByConfig(given, self.space)
        #: All different resources that trials may ask for.
        self.expected = (
            [given if isinstance(given, Resources) else Resources()] if self.asks is None else self.asks.expected
        )
        submitted = this_submission()
        usual = new_name(self.spec.name) if submitted is None else submitted.name
        self.name = settings.name if settings.name is not None else usual
        #: Whether an experiment of this name is deleted first. Only the first run of a submitted script deletes one.
        self.overwrites = settings.run.overwrite and (submitted is None or submitted.is_first)
        self.objective = Objective.of(settings.metric, settings.mode)
        self.scheduler = self._chosen_scheduler()
        if not is_name(self.name):
            raise ConfigurationError(
                f"name={self.name!r} can't name an experiment; use up to 100 letters, digits, dots, dashes and "
                f"underscores"
            )
        self.warm_start = settings.searcher if isinstance(settings.searcher, WarmStart) else None
        #: Why the default searcher is random search and not TPE, for people; empty where the user would not ask.
        self.why_random = ""
        self._searcher = self._chosen_searcher()
        if self.warm_start is not None:
            self.warm_start.check_objective(self.objective)
        if self._searcher is not None:
            self._searcher.check_space(self.space)
            self._searcher.check_objective(self.objective)
            if self._searcher.wants_whole_trials and not isinstance(self.scheduler, FIFO):
                argument = "max_t" if settings.scheduler is None else "the scheduler"
                raise ConfigurationError(
                    f"scheduler={type(self.scheduler).__name__}(…): {type(self._searcher).__name__} compares trials "
                    f"that have run to their own end; leave {argument} out, or end trials by rules: stop=…"
                )
        self.scheduler.check_space(self.space)
        is_open = isinstance(self.space, AnySpace)
        if settings.metric or not is_open:
            self._bind(self.scheduler)
        self.limits = self._limits(as_rule(settings.stop), is_open=is_open)
        self.reading = Reading(settings.failures.metric_from, settings.failures.on_odd_report)

    def _check_call(self) -> None:
        """Check that the space has the parameters of a script's command line.

        Raises:
            ConfigurationError: one is missing, has no argument, or goes into a file.
        """
        template = ArgumentTemplate(self.spec.arguments)
        is_in_file = self.settings.process.pass_config == "json"  # noqa: S105 - it is no password
        if template.has_fields and is_in_file:
            raise ConfigurationError(
                "process=Process(pass_config='json') passes the config in a file, and the command of the script has "
                "{…} for it; leave one of both out"
            )
        if not isinstance(self.space, AnySpace):
            template.check({place.partition(SEPARATOR)[0] for place in self.space.places.values()})

    def _chosen_scheduler(self) -> Scheduler:
        """Return the scheduler that was given, or the default one.

        Raises:
            ConfigurationError: both it and ``max_t`` were given.
        """
        given, max_t = self.settings.scheduler, self.settings.max_t
        if given is not None and max_t is not None:
            raise ConfigurationError(
                f"max_t={max_t!r} is for the default scheduler; give it to yours: "
                f"{type(given).__name__}(max_t={max_t!r}, …)"
            )
        if given is not None or max_t is None:
            return given or FIFO()
        return ASHA(max_t) if self.objective.is_single else MOASHA(max_t)

    @property
    def _is_searched_by_default(self) -> bool:
        return self.settings.searcher is None and self.scheduler.searcher is None

    def _chosen_searcher(self) -> Searcher | None:
        """Return the searcher that was given, that the scheduler brings, or the default one; None for random search."""
        given, own = self.settings.searcher, self.scheduler.searcher
        if own is not None and given is not None:
            raise ConfigurationError(
                f"searcher={given!r}: {type(self.scheduler).__name__} proposes the configs itself; leave searcher out"
            )
        if isinstance(given, WarmStart):
            return given.searcher
        if self._is_searched_by_default:
            return self.default_searcher()
        return searcher_named(given) if isinstance(given, str) else own or given

    def default_searcher(self) -> Searcher | None:
        """Return TPE where Optuna can be imported and TPE suits the space, else None for random search."""
        size = self.space.size
        if self.space.has_grid or (size is not None and size <= (self.settings.max_trials or 1)):
            # Random search goes through all of them, and TPE repeats what was good.
            return None
        if not all(isinstance(each, MODELLED) for each in self.space.domains.values()):
            return None
        try:
            return searcher_named("tpe")
        except ConfigurationError as error:
            self.why_random = str(error)
            return None

    def keep_default(self, described: Mapping[str, object]) -> None:
        """Keep the searcher with which an experiment began, where its user leaves the choice to the default.

        Raises:
            ConfigurationError: the library of that searcher is not installed.
        """
        began_as = described.get(Searcher.role)
        if not self._is_searched_by_default or began_as not in (RandomSearcher.kind, TPE):
            return
        if (self._searcher is None) is (began_as == TPE):
            self._searcher = searcher_named("tpe") if began_as == TPE else None
            if self._searcher is not None:
                self._searcher.check_objective(self.objective)

    def _bind(self, decider: Decider) -> None:
        """Tell a decider what is optimised."""
        decider.check_objective(self.objective)
        decider.bind(self.objective.metrics[0], self.objective.modes[0])

    def _limits(self, rule: StopRule | None, *, is_open: bool) -> Limits:
        settings = self.settings
        if rule is not None:
            self._bind(rule)
        return Limits(
            max_trials=settings.max_trials if settings.max_trials is not None else self._default_number(),
            ttl_s=settings.process.ttl_s,
            fail_fast=settings.failures.fail_fast,
            rule=rule,
            run=settings.run,
            resources=self.expected[0],
            asks=self.asks,
            may_wait=settings.run.queue_trials,
            is_open=is_open,
        )

    def _default_number(self) -> int | None:
        """Return how many trials there are if nobody says so; None for as many as the searcher has."""
        searcher = self._searcher
        if searcher is None or self._is_searched_by_default:
            return max(self.space.grid_size, 1)
        if isinstance(searcher, PointsFirst | Repeater) and searcher.count is not None:
            return max(self.space.grid_size, searcher.count, 1)
        return None

    @property
    def suits_all(self) -> Resources:
        """Resources of slots that are all alike, as on one machine, and that fit each trial.

        Raises:
            InsufficientResources: none does, as trials ask for different numbers of GPUs.
        """
        return self.expected[0] if self.asks is None else self.asks.most

    @property
    def on_loss(self) -> OnLoss:
        """The policy of workers while no driver runs."""
        failures = self.settings.failures
        return OnLoss(failures.on_driver_loss, float(failures.driver_loss_grace_s))

    def experiment(self) -> Experiment:
        """Return the experiment before anything has happened in it."""
        settings, failures = self.settings, self.settings.failures
        return Experiment(
            self.name,
            metric=settings.metric,
            mode=settings.mode,
            max_failures=failures.max_failures,
            max_lost=failures.max_lost,
            accept_no_report=failures.accept_no_report,
        )

    def searcher(self, seed: int) -> Searcher:
        """Return the searcher, at its beginning."""
        if self._searcher is None:
            return RandomSearcher(self.space, seed)
        self._searcher.bind(self.space, seed, metric=self.objective.metrics[0], mode=self.objective.modes[0])
        return self._searcher


def new_name(begin: str) -> str:
    """Return a name for an experiment that no other has, which begins so."""
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", begin)[:60]
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
