"""What is tuned, and how: everything that a user says about an experiment, checked when it is said."""

from __future__ import annotations

import re
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from mqtune.core.checks import optional_count, optional_seconds
from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import CodeDiffers, ConfigurationError, NameTaken
from mqtune.core.events import decode_definition
from mqtune.core.experiment import Experiment, Mode
from mqtune.core.keys import is_name
from mqtune.core.registry import CLASS, described, differences
from mqtune.core.resources import Resources
from mqtune.core.trial import Config, checked_notes, checked_tags
from mqtune.core.version import __version__
from mqtune.driver.checkpoints import Deletes
from mqtune.driver.limits import FailFast, Limits
from mqtune.driver.retention import Retention
from mqtune.driver.screening import MetricFrom, OnOddReport, Reading
from mqtune.journal.base import LossPolicy, OnLoss
from mqtune.schedulers.base import FIFO, Scheduler
from mqtune.schedulers.stopping.rule import as_rule
from mqtune.search.base import Searcher
from mqtune.search.points import PointsFirst
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space
from mqtune.trainable.class_ import check_reusable
from mqtune.trainable.experiment_code import changed_files, fingerprints, read_code
from mqtune.trainable.spec import TrainableSpec

__all__ = ["DRIVER_LOSS_GRACE_S", "CodePolicy", "KeepWorkingDir", "Plan", "Sync", "WorkingDir"]

Sync = Literal["stream", "lockstep"]
#: Where a trial's process runs: in its worker's working directory, or in a folder of its own.
WorkingDir = Literal["code", "trial"]
#: Of which attempts such a folder is kept.
KeepWorkingDir = Literal["always", "failed", "never"]
#: What happens when an experiment's code is not what it was when it began: it is said, or nothing runs.
CodePolicy = Literal["warn", "strict"]

#: For how long nobody need drive an experiment before its workers do what was to happen then: long enough to run a script
#: again, also on another machine.
DRIVER_LOSS_GRACE_S: Final = 600.0
#: What counts of a definition that was written before it said so.
_BEFORE: Final[dict[str, Any]] = {"on_odd_report": "warn"}
#: What may differ when an experiment goes on: how far it goes, how it ends, what is kept, and which mqtune does it, where.
_MAY_CHANGE: Final = (
    "max_trials",
    "max_concurrent",
    "ttl_s",
    "time_budget_s",
    "trial_time_budget_s",
    "fail_fast",
    "stop",
    "retention",
    "delete_checkpoints",
    "queue_trials",
    "local_slots",
    "on_driver_loss",
    "driver_loss_grace_s",
    "working_dir",
    "keep_working_dir",
    "metric_from",
    "code",
    "code_files",
    "code_root",
    "version",
)


class Plan:
    """One experiment as its user wants it; see ``Tuner`` for the arguments.

    A trainable may be given by its name, a ``TrainableSpec``, with the code root that it was found below.

    Raises:
        ConfigurationError: an argument makes no sense.
    """

    def __init__(
        self,
        trainable: object,
        space: Mapping[str, Any] | Space,
        *,
        metric: str,
        mode: Mode,
        searcher: Searcher | None,
        scheduler: Scheduler | None,
        max_trials: int | None,
        points_to_evaluate: Sequence[Config],
        resources: Resources | None,
        name: str | None,
        seed: int | None,
        max_failures: int,
        max_concurrent: int | None,
        start_method: str | None,
        sync: Sync,
        stop: object,
        ttl_s: float | None,
        time_budget_s: float | None,
        trial_time_budget_s: float | None,
        fail_fast: FailFast,
        accept_no_report: bool,
        pass_config: str,
        pass_checkpoint_dir: bool,
        retention: Retention | None,
        delete_checkpoints: Deletes,
        reuse: bool,
        on_driver_loss: LossPolicy = "continue",
        driver_loss_grace_s: float = DRIVER_LOSS_GRACE_S,
        queue_trials: bool = True,
        local_slots: int | None = None,
        working_dir: WorkingDir = "code",
        keep_working_dir: KeepWorkingDir = "always",
        code: CodePolicy = "warn",
        code_root: Path | None = None,
        metric_from: MetricFrom = "first",
        on_odd_report: OnOddReport = "warn",
        overwrite: bool = False,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
    ) -> None:
        if not isinstance(overwrite, bool):
            raise ConfigurationError(f"overwrite={overwrite!r} is neither True nor False")
        #: Whether an experiment that has the name already is deleted first.
        self.overwrite = overwrite
        self.reuse = bool(reuse)
        if isinstance(trainable, TrainableSpec):
            self.spec, self.code_root = trainable, code_root if code_root is not None else Path.cwd()
        else:
            self.spec, self.code_root = TrainableSpec.of(trainable)
            if reuse:
                check_reusable(trainable)
        self.reading = Reading(metric_from, on_odd_report)
        #: The experiment's tags and notes; None for those it has. They are no part of what it is.
        self.tags = None if tags is None else checked_tags(tags)
        self.notes = None if notes is None else checked_notes(notes)
        self.on_loss = _on_loss(on_driver_loss, driver_loss_grace_s)
        self.queue_trials = queue_trials
        self.working_dir = working_dir
        self.keep_working_dir = keep_working_dir
        self.code = code
        #: The files of the trainable, once they were read, and those that are not as they were when the experiment began.
        self.sources: dict[str, bytes] = {}
        self.changed: list[str] = []
        self.local_slots = optional_count("local_slots", local_slots, 1)
        self.space = space if isinstance(space, Space) else Space(space)
        self.resources = resources if resources is not None else Resources()
        self.name = name if name is not None else _new_name(self.spec)
        self.sync = sync
        self.retention = retention if retention is not None else Retention()
        self.delete_checkpoints = delete_checkpoints
        self.pass_config = pass_config
        self.pass_checkpoint_dir = pass_checkpoint_dir
        self.max_trials = optional_count("max_trials", max_trials, 1)
        self.seed = optional_count("seed", seed, 0)
        self.scheduler = scheduler if scheduler is not None else FIFO()
        #: The URL of the checkpoint store, or empty; known once the broker is.
        self.store = ""
        self.start_method = start_method or ("spawn" if sys.platform == "darwin" else "fork")
        self._own_searcher = searcher
        self._points = list(points_to_evaluate)
        self._check(max_failures)
        if self.max_trials is None and searcher is None:
            self.max_trials = max(self.space.grid_size, len(self._points), 1)
        rule = as_rule(stop)
        self.scheduler.check_space(self.space)
        self.scheduler.bind(metric, mode)
        if rule is not None:
            rule.bind(metric, mode)
        self.limits = Limits(
            max_trials=self.max_trials,
            max_concurrent=max_concurrent,
            ttl_s=ttl_s,
            time_budget_s=time_budget_s,
            trial_time_budget_s=trial_time_budget_s,
            fail_fast=fail_fast,
            rule=rule,
        )
        self.experiment = Experiment(
            self.name, metric=metric, mode=mode, max_failures=max_failures, accept_no_report=accept_no_report
        )

    def _check(self, max_failures: object) -> None:
        if not is_name(self.name):
            raise ConfigurationError(
                f"name={self.name!r} can't name an experiment; use up to 100 letters, digits, dots, dashes and underscores"
            )
        if not isinstance(self.scheduler, Scheduler):
            raise ConfigurationError(
                f"scheduler={self.scheduler!r} is not a scheduler; give mqtune.ASHA(…) or leave it out"
            )
        if not isinstance(self._own_searcher, Searcher | None):
            raise ConfigurationError(
                f"searcher={self._own_searcher!r} is not a searcher; leave it out for random search"
            )
        if not isinstance(self.resources, Resources):
            raise ConfigurationError(f"resources={self.resources!r}: give mqtune.Resources(gpus=…, cpus=…)")
        if isinstance(max_failures, bool) or not isinstance(max_failures, int) or max_failures < -1:
            raise ConfigurationError(
                f"max_failures={max_failures!r} makes no sense; give 0, a number, or -1 for any number"
            )
        if self.start_method not in ("fork", "spawn"):
            raise ConfigurationError(f"start_method={self.start_method!r} is neither 'fork' nor 'spawn'")
        if self.sync not in get_args(Sync):
            raise ConfigurationError(f"sync={self.sync!r} is neither 'stream' nor 'lockstep'")
        for argument, value, known in (
            ("working_dir", self.working_dir, get_args(WorkingDir)),
            ("keep_working_dir", self.keep_working_dir, get_args(KeepWorkingDir)),
            ("code", self.code, get_args(CodePolicy)),
        ):
            if value not in known:
                raise ConfigurationError(f"{argument}={value!r} is none of {', '.join(map(repr, known))}")
        if self.pass_config not in ("arguments", "json"):
            raise ConfigurationError(f"pass_config={self.pass_config!r} is neither 'arguments' nor 'json'")
        if not isinstance(self.delete_checkpoints, bool) and self.delete_checkpoints not in ("stopped", "all"):
            raise ConfigurationError(
                f"delete_checkpoints={self.delete_checkpoints!r} is none of False, 'stopped', True and 'all'"
            )
        if not isinstance(self.retention, Retention):
            raise ConfigurationError(f"retention={self.retention!r}: give mqtune.Retention(keep_last=…, keep_best=…)")
        if self._own_searcher is not None and self._points:
            raise ConfigurationError(
                "points_to_evaluate goes with the default searcher; wrap yours in mqtune.PointsFirst"
            )
        for index, point in enumerate(self._points):
            try:
                self.space.check(point)
            except ConfigurationError as error:
                raise ConfigurationError(f"points_to_evaluate[{index}]: {error}") from None

    def searcher(self) -> Searcher:
        """Return the searcher, at its beginning; the seed must be known."""
        if self._own_searcher is not None:
            return self._own_searcher
        seed = self.seed or 0
        searcher = RandomSearcher(self.space, seed)
        return PointsFirst(searcher, self.space, self._points, seed) if self._points else searcher

    def read_code(self) -> None:
        """Read the trainable's files, as far as they are here: the definition then says what they hold."""
        self.sources = read_code(self.spec, self.code_root)

    def definition(self, kept: bytes | None) -> dict[str, Any]:
        """Return what the journal says the experiment is: *kept*, if it exists already and is this one, else a new one.

        What may change is as this plan has it. A seed that was left out is drawn, or taken from what was kept.

        Raises:
            NameTaken: an experiment with another definition has the name.
        CodeDiffers: the code has changed, and must not.
        """
        before = None if kept is None else decode_definition(self.name, kept)
        if before is not None:
            before |= {key: value for key, value in _BEFORE.items() if key not in before}
        if self.seed is None:
            self.seed = before["seed"] if before is not None else secrets.randbits(32)
        now: dict[str, Any] = decode_value(encode_value(self._describe()))
        if before is None:
            return now
        differing = [key for key in now if key not in _MAY_CHANGE and _same(now[key]) != _same(before.get(key))]
        if differing:
            raise NameTaken(self._what_differs({key: (_same(before.get(key)), _same(now[key])) for key in differing}))
        if not self.sources:
            # Where the code isn't, as with ``attach`` on another machine, it is what it was.
            now["code_files"] = before.get("code_files", {})
        self._check_code(now["code_files"], before.get("code_files"))
        return {**before, **{key: now[key] for key in _MAY_CHANGE}}

    def _check_code(self, now: Mapping[str, str], before: object) -> None:
        self.changed = changed_files(now, before)
        if self.changed and self.code == "strict":
            raise CodeDiffers(
                f"experiment {self.name!r} began with other code, and goes on with no other (code='strict'): "
                f"{', '.join(self.changed)} changed. Put that back; or give this one another name; or begin anew: overwrite=True"
            )

    def _what_differs(self, differing: Mapping[str, tuple[Any, Any]]) -> str:
        """Return, line by line, in what another experiment of this name differs, and what can be done."""
        lines = [line for key, (was, is_) in differing.items() for line in differences(key, was, is_)]
        # A searcher that has the space and the seed would say the same once more.
        lines = [line for line in lines if not any(line.startswith(f"searcher.{key}") for key in differing)]
        head = f"experiment {self.name!r} exists, and is another one:"
        ways_out = (
            f"Give this one another name, such as name={f'{self.name}-2'!r}; or go on with the one that exists: "
            f"`mqtune resume {self.name}`; or delete that, with its results, and begin anew: overwrite=True"
        )
        return "\n  ".join([head, *lines, ways_out])

    def _describe(self) -> dict[str, Any]:
        return {
            "trainable": self.spec.encode(),
            "space": self.space.describe(),
            "metric": self.experiment.metric,
            "mode": self.experiment.mode,
            "searcher": described(self.searcher()),
            "scheduler": described(self.scheduler),
            "resources": self.resources.encode(),
            "max_failures": self.experiment.max_failures,
            "seed": self.seed,
            "start_method": self.start_method,
            "reuse": self.reuse,
            "sync": self.sync,
            "accept_no_report": self.experiment.accept_no_report,
            "pass_config": self.pass_config,
            "pass_checkpoint_dir": self.pass_checkpoint_dir,
            "store": self.store,
            "max_trials": self.max_trials,
            "max_concurrent": self.limits.max_concurrent,
            "ttl_s": self.limits.ttl_s,
            "time_budget_s": self.limits.time_budget_s,
            "trial_time_budget_s": self.limits.trial_time_budget_s,
            "fail_fast": self.limits.fail_fast,
            "stop": None if self.limits.rule is None else described(self.limits.rule),
            "retention": asdict(self.retention),
            "delete_checkpoints": self.delete_checkpoints,
            "queue_trials": self.queue_trials,
            "local_slots": self.local_slots,
            "on_driver_loss": self.on_loss.policy,
            "driver_loss_grace_s": self.on_loss.grace_s,
            "metric_from": self.reading.metric_from,
            "on_odd_report": self.reading.on_odd_report,
            "working_dir": self.working_dir,
            "keep_working_dir": self.keep_working_dir,
            "code": self.code,
            "code_files": fingerprints(self.spec, self.sources),
            "code_root": str(self.code_root),
            "version": __version__,
        }


def _on_loss(policy: object, grace_s: object) -> OnLoss:
    if policy not in get_args(LossPolicy):
        known = ", ".join(map(repr, get_args(LossPolicy)))
        raise ConfigurationError(f"on_driver_loss={policy!r} is none of {known}")
    return OnLoss(cast("LossPolicy", policy), optional_seconds("driver_loss_grace_s", grace_s) or DRIVER_LOSS_GRACE_S)


def _same(value: Any) -> Any:
    """Return what must be equal; a script may be started from another folder, or a class be imported by another name."""
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if key != CLASS}
        return {**value, "script": Path(value["script"]).name} if "script" in value else value
    return value


def _new_name(spec: TrainableSpec) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", spec.name)[:60]
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
