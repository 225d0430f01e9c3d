"""An experiment as its user wants it: what follows from the settings, and the definition that the journal has."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import CodeDiffers, ConfigurationError, NameTaken
from mqtune.core.events import decode_definition
from mqtune.core.experiment import LOST_BUDGET, Experiment
from mqtune.core.keys import is_name
from mqtune.core.machine import CHECKPOINTS
from mqtune.core.objective import Objective
from mqtune.core.registry import CLASS, described, differences
from mqtune.core.resources import Resources
from mqtune.core.version import __version__
from mqtune.driver.bundling import Project
from mqtune.driver.screening import Reading
from mqtune.driver.settings import (
    LEARN_FROM,
    LEARNT,
    MAY_CHANGE,
    RETIRED,
    Definition,
    KnownTrainable,
    Limits,
    Settings,
    kept_options,
)
from mqtune.driver.sharing import Standing
from mqtune.journal.base import OnLoss
from mqtune.journal.connection import redact
from mqtune.results.warm_start import WarmStart
from mqtune.schedulers.base import FIFO, Decider
from mqtune.schedulers.stopping.rule import StopRule, as_rule
from mqtune.search.base import Searcher, searcher_named
from mqtune.search.points import PointsFirst
from mqtune.search.random import RandomSearcher
from mqtune.search.repeater import Repeater
from mqtune.search.space import AnySpace, Space
from mqtune.trainable.bundle import Bundle
from mqtune.trainable.class_ import check_reusable
from mqtune.trainable.experiment_code import changed_files, fingerprints, read_code
from mqtune.trainable.spec import TrainableSpec

logger = logging.getLogger(__name__)

#: What counts of a definition that was written before it had this, and what must not change.
_BEFORE: Final[Mapping[str, object]] = {"on_odd_report": "warn", "max_lost": LOST_BUDGET}


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
                "the space has the list %s as %r in each trial; to try its values write mqtune.choice(%s), to keep it a tuple",
                shown,
                name,
                shown,
            )


class Plan:
    """One experiment as its user wants it: its settings, with all that follows from them.

    Args:
        settings: what the user gave.

    Raises:
        ConfigurationError: an argument is invalid, or some don't go together.
        TrainableNotFound: no worker could import the trainable.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if isinstance(settings.trainable, KnownTrainable):
            self.spec, self.code_root, cell = settings.trainable
        else:
            self.spec, self.code_root, cell = KnownTrainable.of(settings.trainable)
            if settings.process.reuse:
                check_reusable(settings.trainable)
        #: The files of the trainable, once they were read, and those that are not as they were when the experiment began.
        self.sources: dict[str, bytes] = {}
        self.changed: list[str] = []
        #: The folder that is brought to workers, and, once that was read, its bundle.
        self.project: Project | None = None
        self.bundle: Bundle | None = None
        if settings.process.bundle is not None or cell is not None:
            stores = [store for store in (settings.checkpoints.store,) if store is not None]
            self.project = Project(settings.process.bundle, self.spec, self.code_root, stores, cell)
        #: The digest of the bundle that it had before this run, or empty.
        self.bundle_before = ""
        #: Returns an earlier bundle of the experiment by its digest, or None.
        self.find_bundle: Callable[[str], Bundle | None] = lambda _: None
        #: The URL of the checkpoint store, and of the broker, or empty; known once there is a connection.
        self.store = self.broker = ""
        self.seed = settings.seed
        self.space = settings.space if isinstance(settings.space, Space) else Space(settings.space)
        if not isinstance(settings.space, Space):
            _warn_of_lists(settings.space)
        self.resources = settings.resources if settings.resources is not None else Resources()
        self.name = settings.name if settings.name is not None else _new_name(self.spec)
        self.scheduler = settings.scheduler if settings.scheduler is not None else FIFO()
        if not is_name(self.name):
            raise ConfigurationError(
                f"name={self.name!r} can't name an experiment; use up to 100 letters, digits, dots, dashes and underscores"
            )
        self._learnt: Definition = {}
        self.warm_start = settings.searcher if isinstance(settings.searcher, WarmStart) else None
        self._searcher = self._chosen_searcher()
        constraints = () if self._searcher is None else self._searcher.outcome_constraints
        self.objective = Objective.of(settings.metric, settings.mode, constraints)
        if self.warm_start is not None:
            self.warm_start.check_objective(self.objective)
        if self._searcher is not None:
            self._searcher.check_space(self.space)
            self._searcher.check_objective(self.objective)
            if self._searcher.wants_whole_trials and not isinstance(self.scheduler, FIFO):
                raise ConfigurationError(
                    f"scheduler={type(self.scheduler).__name__}(…): {type(self._searcher).__name__} compares trials that have run to "
                    "their own end; leave the scheduler out, or end trials by rules: stop=…"
                )
        self.scheduler.check_space(self.space)
        is_open = isinstance(self.space, AnySpace)
        if settings.metric or not is_open:
            self._bind(self.scheduler)
        self.limits = self._limits(as_rule(settings.stop), is_open=is_open)
        failures = settings.failures
        self.reading = Reading(failures.metric_from, failures.on_odd_report)
        self.experiment = Experiment(
            self.name,
            metric=settings.metric,
            mode=settings.mode,
            max_failures=failures.max_failures,
            max_lost=failures.max_lost,
            accept_no_report=failures.accept_no_report,
            outcome_constraints=constraints,
        )

    def _chosen_searcher(self) -> Searcher | None:
        """Return the searcher that was given, or that the scheduler brings; None for random search."""
        given, own = self.settings.searcher, self.scheduler.searcher
        if own is not None and given is not None:
            raise ConfigurationError(
                f"searcher={given!r}: {type(self.scheduler).__name__} proposes the configs itself; leave searcher out"
            )
        if isinstance(given, WarmStart):
            return given.searcher
        return searcher_named(given) if isinstance(given, str) else own or given

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
            max_concurrent=settings.run.max_concurrent,
            ttl_s=settings.process.ttl_s,
            journal_mb=float(settings.run.journal_mb),
            fail_fast=settings.failures.fail_fast,
            rule=rule,
            standing=Standing(settings.run.priority, float(settings.run.share), settings.run.preemptible),
            is_open=is_open,
        )

    def _default_number(self) -> int | None:
        """Return how many trials there are if nobody says so; None for as many as the searcher has."""
        searcher = self._searcher
        if searcher is None:
            return max(self.space.grid_size, 1)
        if isinstance(searcher, PointsFirst | Repeater) and searcher.count is not None:
            return max(self.space.grid_size, searcher.count, 1)
        return None

    @property
    def on_loss(self) -> OnLoss:
        """What workers do when nobody drives the experiment."""
        failures = self.settings.failures
        return OnLoss(failures.on_driver_loss, float(failures.driver_loss_grace_s))

    def searcher(self) -> Searcher:
        """Return the searcher, at its beginning; the seed must be known."""
        seed = self.seed or 0
        if self._searcher is None:
            return RandomSearcher(self.space, seed)
        self._searcher.bind(self.space, seed, metric=self.objective.metrics[0], mode=self.objective.modes[0])
        return self._searcher

    def read_code(self) -> None:
        """Read the trainable's files, as far as they are here: the definition then says what they hold."""
        written = {} if self.project is None else self.project.written
        self.sources = read_code(self.spec, self.code_root, written)
        if self.project is not None:
            self.bundle = self.project.pack(self.sources)

    def definition(self, kept: bytes | None) -> Definition:
        """Return what the journal says the experiment is: *kept*, if it exists already and is this one, else a new one.

        What may change is as this plan has it. A seed that was left out is drawn, or taken from what was kept.

        Raises:
            NameTaken: an experiment with another definition has the name.
            CodeDiffers: the code has changed, and must not.
            ConfigurationError: a new one can't learn from what it should.
        """
        before = None if kept is None else decode_definition(self.name, kept)
        if before is not None:
            before |= {key: value for key, value in _BEFORE.items() if key not in before}
        if self.seed is None:
            self.seed = before["seed"] if before is not None else secrets.randbits(32)
        now: Definition = decode_value(encode_value(self._describe()))
        if before is None:
            return now | self.learnt()
        fixed = [key for key in dict.fromkeys([*now, LEARN_FROM]) if key not in MAY_CHANGE]
        pairs = {key: (_same(before.get(key)), _same(now.get(key))) for key in fixed}
        if differing := {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}:
            raise NameTaken(self._what_differs(differing))
        self.bundle_before = bundled = str(before.get("bundle", ""))
        if bundled and self.project is None and isinstance(self.settings.trainable, KnownTrainable):
            # What lies here has nothing to do with it.
            self.sources = {}
        elif bundled and self.bundle is None:
            now |= {"bundle": "", "bundle_root": ".", "bundle_is_cwd": True}
        if not self.sources:
            # Where the code isn't, as with ``attach`` on another machine, it is what it was.
            now["code_files"] = before.get("code_files", {})
        self._check_code(now["code_files"], before)
        return {**before, **{key: value for key, value in now.items() if key in MAY_CHANGE}}

    def learnt(self) -> Definition:
        """Return what a new experiment's searcher learns, read once from its sources; later drivers take it from the definition.

        Raises:
            ConfigurationError: there is nothing that it could learn.
            BrokerUnavailable: the broker doesn't answer.
        """
        if self.warm_start is not None and not self._learnt:
            found = self.warm_start.read(
                self.space, self.objective.metrics[0], self.objective.modes[0], broker=self.broker
            )
            self._learnt = decode_value(encode_value({LEARNT: found}))
        return self._learnt

    def _check_code(self, now: Mapping[str, str], before: Definition) -> None:
        self.changed = changed_files(now, before.get("code_files"))
        earlier = self.find_bundle(self.bundle_before) if self.bundle_before else None
        if self.project is not None and earlier is not None:
            self.changed = self.project.changed_since(earlier)
        if self.changed and self.settings.process.code == "strict":
            raise CodeDiffers(
                f"experiment {self.name!r} began with other code, and goes on with no other (code='strict'): "
                f"{', '.join(self.changed)} changed. Put that back; or give this one another name; or start from scratch: "
                "run=RunOptions(overwrite=True)"
            )

    def _what_differs(self, differing: Mapping[str, tuple[object, object]]) -> str:
        """Return, line by line, in what another experiment of this name differs, and what can be done."""
        lines = [line for key, (was, is_) in differing.items() for line in differences(key, was, is_)]
        # A searcher that has the space and the seed would say the same once more.
        lines = [line for line in lines if not any(line.startswith(f"searcher.{key}") for key in differing)]
        go_on = f"`mqtune drive {self.name}`"
        if moved := self._where_it_ran(*differing.get("store", ("", ""))):
            ran, go_on = moved
            lines = [ran, *(line for line in lines if not line.startswith("store "))]
        head = f"experiment {self.name!r} exists, and is another one:"
        ways_out = (
            f"Give this one another name, such as name={f'{self.name}-2'!r}; or go on with the one that exists: "
            f"{go_on}; or delete that, with its results, and start from scratch: run=RunOptions(overwrite=True)"
        )
        return "\n  ".join([head, *lines, ways_out])

    def _where_it_ran(self, was: object, is_: object) -> tuple[str, str] | None:
        """Return that the store says that the experiment ran elsewhere, and how it goes on there; None if it doesn't."""
        # Without a store given, a run on this machine alone has one in its folder, and a run on a broker has none.
        own = f"/{self.name}/{CHECKPOINTS}"
        if self.broker and own in str(was) and not is_:
            ran = f"it ran on this machine alone, and now a broker is given: {redact(self.broker)}"
            return ran, "backend=mqtune.Local(), or without $MQTUNE_BROKER"
        if not self.broker and own in str(is_) and not was:
            return "it ran on a broker, and now none is given", "with $MQTUNE_BROKER, or backend='redis://…'"
        return None

    def _describe(self) -> Definition:
        kept, rule = kept_options(self.settings), self.limits.rule
        if kept["pass_checkpoint_dir"] is None:
            kept["pass_checkpoint_dir"] = self.settings.checkpoints.store is not None
        return kept | {
            "trainable": self.spec.encode(),
            "space": self.space.describe(),
            "searcher": described(self.searcher()),
            "scheduler": described(self.scheduler),
            "stop": None if rule is None else described(rule),
            "resources": self.resources.encode(),
            "max_trials": self.limits.max_trials,
            "seed": self.seed,
            "store": self.store,
            "code_files": fingerprints(self.spec, self.sources),
            "code_root": str(self.code_root),
            "version": __version__,
            **dict.fromkeys(RETIRED),
            **({} if self.warm_start is None else {LEARN_FROM: self.warm_start.names}),
            **self._described_bundle(),
        }

    def _described_bundle(self) -> Definition:
        if self.bundle is None or self.project is None:
            return {}
        return {"bundle": self.bundle.digest, "bundle_root": self.project.root, "bundle_is_cwd": self.project.has_all}


def _same(value: object) -> object:
    """Return what must be equal; a script may be started from another folder, or a class be imported by another name."""
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if key != CLASS}
        return {**value, "script": Path(value["script"]).name} if "script" in value else value
    return value


def _new_name(spec: TrainableSpec) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", spec.name)[:60]
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
