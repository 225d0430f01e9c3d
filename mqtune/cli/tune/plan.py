"""Convert a command line of ``mqtune tune``, and a sweep, to the arguments of a ``Tuner``."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final

from mqtune.cli.replay import scheduler_of
from mqtune.cli.tune.domains import value_of
from mqtune.cli.tune.program import TunedProgram, program_of
from mqtune.cli.tune.wandb_file import EarlyTermination, Sweep
from mqtune.cli.tune.words import Words
from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources
from mqtune.core.text import names_in_words, put
from mqtune.core.trial import ITERATION
from mqtune.schedulers.asha import ASHA
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.moasha import MOASHA
from mqtune.schedulers.stopping.experiment_rules import TargetReached, TimeLimit
from mqtune.schedulers.stopping.rule import StopRule
from mqtune.search.space import Space
from mqtune.trainable.json_reports import JSON_LINES
from mqtune.trainable.script_arguments import Script

#: Names of groups in patterns that count a trial's steps. The first present one is used.
_STEPS: Final = ("step", "epoch", "iteration")
#: A last step that no trial reaches, for a scheduler if the last step is unknown.
_ENDLESS: Final = 10**12
_ASSIGNMENT: Final = re.compile(r"(?P<name>[^=]+)=(?P<value>.*)", re.DOTALL)
_DURATION: Final = re.compile(r"(\d+\.?\d*)([smhd]?)", re.ASCII)
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")
_STEM_CHARS: Final = 60
_DIGEST_CHARS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of ``mqtune tune`` that define the experiment."""

    minimize: Sequence[str] = ()
    maximize: Sequence[str] = ()
    patterns: Sequence[str] = ()
    fixed: Sequence[str] = ()
    variables: Sequence[str] = ()
    max_trials: int | None = None
    max_t: float | None = None
    step: str | None = None
    scheduler: str | None = None
    searcher: str | None = None
    time_limit: str | None = None
    cpus: int = 1
    gpus: float = 0
    name: str | None = None


class Plan:
    """The experiment that a command line of ``mqtune tune`` defines.

    Args:
        words: the program and its arguments. If empty, those in *sweep* are used.
        options: the options. They have precedence over *sweep*.
        sweep: the sweep in the given file, or None.

    Raises:
        ConfigurationError: something is missing, or two options contradict each other.
        SpaceError: a domain is invalid.
        TrainableNotFound: the program does not exist, or trials can't run it.
    """

    def __init__(self, words: Sequence[str], options: Options, sweep: Sweep | None = None) -> None:
        self._options = options
        self._sweep = sweep
        self._program, arguments = _program_and_arguments(words, sweep)
        self._space = _with_constants(
            {**({} if sweep is None else sweep.space), **arguments.space}, options.fixed, sweep
        )
        self._modes = self._objective()
        self._script = Script([*self._program.begin, *arguments.items], metrics=options.patterns or JSON_LINES)
        #: The named groups of the patterns.
        self._groups = [name for pattern in options.patterns for name in re.compile(pattern).groupindex]
        self._check_patterns()
        #: Lines for the user about keys of the file that have no effect, and about differences to a start by hand.
        self.notes = [*([] if sweep is None else sweep.warnings), *self._program.notes, *arguments.notes]
        self._scheduler = self._chosen_scheduler()

    @property
    def metrics(self) -> list[str]:
        """The names of the optimised metrics."""
        return list(self._modes)

    def _objective(self) -> dict[str, str]:
        """Return the mode of each optimised metric."""
        options = self._options
        both = [name for name in options.minimize if name in options.maximize]
        if both:
            raise ConfigurationError(f"{both[0]!r} can't be both minimized and maximized; give one of the options")
        modes = {**dict.fromkeys(options.minimize, "min"), **dict.fromkeys(options.maximize, "max")}
        if not modes and self._sweep is not None and self._sweep.metric:
            modes = {self._sweep.metric: self._sweep.mode}
        if not modes:
            where = "" if self._sweep is None else ", or metric in the file"
            raise ConfigurationError(f"the metric is missing; give --minimize METRIC or --maximize METRIC{where}")
        return modes

    def _check_patterns(self) -> None:
        """Check that the patterns have groups for all metrics and for the step."""
        if not self._groups:
            # Without patterns, metrics are read from JSON lines.
            return
        wanted = [*self._modes, *filter(None, [self._options.step])]
        if missing := [name for name in wanted if name not in self._groups]:
            name = valid_group(missing[0])
            if name != missing[0]:
                raise ConfigurationError(
                    f"no group of a --pattern can have the name {missing[0]!r}; name it {name}, and give {name} to "
                    "--minimize, --maximize or --step"
                )
            raise ConfigurationError(
                f"no --pattern has a group (?P<{missing[0]}>…); their groups are {names_in_words(self._groups)}"
            )

    @property
    def _step(self) -> str | None:
        """The metric that counts a trial's steps. It is None if its reports are counted instead."""
        if self._options.step is not None:
            return self._options.step
        return next((name for name in _STEPS if name in self._groups and name not in self._modes), None)

    def _chosen_scheduler(self) -> Scheduler | None:
        options, step = self._options, self._step
        if options.scheduler is not None:
            if given := [name for name in ("max_t", "step") if getattr(options, name) is not None]:
                option = f"--{given[0].replace('_', '-')}"
                raise ConfigurationError(f"{option} is for ASHA; leave it out, or write it into --scheduler")
            return scheduler_of(options.scheduler)
        early = None if self._sweep is None else self._sweep.stops_early
        if early is None and step is None and options.max_t is None:
            return None
        early = early or EarlyTermination(1, None, 3)
        last = early.last if options.max_t is None else options.max_t
        if last is not None and float(last).is_integer():
            # In definitions and messages, whole numbers have no dot.
            last = int(last)
        kind = ASHA if len(self._modes) == 1 else MOASHA
        return kind(
            _ENDLESS if last is None else last,
            grace_period=early.first,
            reduction_factor=early.eta,
            # Without --max-t, a trial may continue after this step.
            stop_last_trials=options.max_t is not None,
            time_attr=step or ITERATION,
        )

    def _stop(self) -> StopRule | None:
        rules: list[StopRule] = []
        if self._options.time_limit is not None:
            rules.append(TimeLimit(seconds_of(self._options.time_limit)))
        sweep = self._sweep
        if sweep is not None and sweep.target is not None and self._modes == {sweep.metric: sweep.mode}:
            rules.append(TargetReached(sweep.target))
        return reduce(or_, rules) if rules else None

    @property
    def env(self) -> dict[str, str] | None:
        """The environment variables to set in trials, or None."""
        return {**self._program.env, **dict(_pair(text, "--env") for text in self._options.variables)} or None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the ``Tuner``, without its backend, store and run options.

        Raises:
            ConfigurationError: the number of trials is missing.
        """
        options, sweep = self._options, self._sweep
        run_cap = None if sweep is None else sweep.run_cap
        max_trials = run_cap if options.max_trials is None else options.max_trials
        space = Space(self._space)
        if max_trials is None and not space.has_grid and space.size != 1:
            where = "" if sweep is None else ", or run_cap in the file"
            raise ConfigurationError(f"the number of trials is missing; give --max-trials N{where}")
        searcher = options.searcher or (None if sweep is None else sweep.searcher)
        return {
            "trainable": self._script,
            "space": self._space,
            "metric": self.metrics if len(self._modes) > 1 else self.metrics[0],
            "mode": [*self._modes.values()] if len(self._modes) > 1 else next(iter(self._modes.values())),
            "max_trials": max_trials,
            "searcher": searcher,
            "scheduler": self._scheduler,
            "stop": self._stop(),
            "resources": Resources(gpus=options.gpus, cpus=options.cpus),
            "name": self._name(space, searcher),
        }

    def _name(self, space: Space, searcher: str | None) -> str:
        """Return the given name, or the default one of this command in this folder.

        The default has a digest of the parts that must not change when an experiment continues.
        """
        if self._options.name is not None:
            return self._options.name
        scheduler, options = self._scheduler, self._options
        parts = [
            str(Path.cwd()),
            repr(self._script),
            space.describe(),
            self._modes,
            searcher,
            None if scheduler is None else {"kind": scheduler.kind, **scheduler.describe()},
            [options.cpus, options.gpus],
        ]
        digest = hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:_DIGEST_CHARS]
        given = "" if self._sweep is None else self._sweep.name
        stem = _NOT_IN_NAMES.sub("-", given or self._program.stem).strip("-_")[:_STEM_CHARS] or "tune"
        return f"{stem}-{digest}"


def _program_and_arguments(words: Sequence[str], sweep: Sweep | None) -> tuple[TunedProgram, Words]:
    """Return the program and its arguments, from the command line or else from the sweep."""
    if sweep is None:
        program = program_of(words)
        arguments = Words(program.rest)
        if not arguments.space:
            raise ConfigurationError(
                "the command has no domain to search; write one in place of a value, in quotes: "
                "--lr '~loguniform(1e-5, 1e-1)'"
            )
        return program, arguments
    given = [*words] or sweep.words()
    if words and not any(sweep.macro(word) for word in words):
        given.append("${args}")
    program = program_of(given)
    return program, Words(program.rest, sweep.macro)


def _with_constants(space: Mapping[str, object], fixed: Sequence[str], sweep: Sweep | None) -> dict[str, object]:
    """Return a space in which the constants of --fixed replace domains.

    Raises:
        ConfigurationError: the command has no such parameter.
    """
    values = {name: value_of(text) for name, text in (_pair(option, "--fixed") for option in fixed)}
    for name in values:
        if name not in space and sweep is None:
            raise ConfigurationError(
                f"--fixed {name}: the command has no such parameter, only {names_in_words(space)}; write an argument "
                "that never changes into the command itself"
            )
    changed: dict[str, object] = {**space}
    for name, value in values.items():
        group, _, rest = name.partition(".")
        inner = changed.get(group)
        if name not in space and rest and isinstance(inner, dict):
            changed[group] = inner = copy.deepcopy(inner)
            put(inner, rest, value)
        else:
            changed[name] = value
    return changed


def valid_group(metric: str) -> str:
    """Return a name that a pattern's group can have, such as ``val_loss`` for ``val/loss``."""
    name = re.sub(r"\W", "_", metric)
    return name if name.isidentifier() else f"_{name}"


def _pair(text: str, option: str) -> tuple[str, str]:
    match = _ASSIGNMENT.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{option} {text!r} is not an assignment; write {option} NAME=VALUE")
    return match["name"], match["value"]


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as ``90``, ``30m`` or ``1.5h``.

    Raises:
        ConfigurationError: the text is not a duration.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"--time-limit {text!r} is not a duration; write seconds, or 30m, 2h or 1d")
    return float(match[1]) * _UNITS_S[match[2]]
