"""Warm starts: searchers that learn from past trials before their first suggestion."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from mqtune.client import Client
from mqtune.core.codec import encode_value
from mqtune.core.entry_points import IMPORTERS, load_point
from mqtune.core.errors import ConfigurationError, CopyIncomplete, MqtuneError, SpaceError, UserCodeFailed
from mqtune.core.objective import GoesByObjective, Objective
from mqtune.core.trial import ITERATION, Config, Trial, TrialStatus, is_number
from mqtune.journal.server.connection import redact
from mqtune.results.experiments import find_experiment
from mqtune.results.results import Results
from mqtune.search.base import PastTrial, Searcher, is_searcher_name, searcher_named, searcher_names
from mqtune.search.space import Space

logger = logging.getLogger(__name__)

#: Maximum bytes of all learnt trials, packed: about ten thousand trials of ten values.
MAX_LEARNT_BYTES: Final = 2**20
#: A past trial as a definition stores it: config, value (None if not finite), step, and status.
_Kept = tuple[Config, float | None, int, str]


class WarmStart(GoesByObjective):
    """Has a searcher learn from past trials, before it proposes its first config.

    A past trial is used if it is COMPLETED or EARLY_STOPPED, has a value (the last counts), and if its config has a
    valid value for each domain of the space. Constants and unknown keys don't matter. Other trials are left out, and
    one warning gives their number. The learnt trials become part of the definition, so a resumed driver learns the same
    ones without the sources.

    Args:
        learn_from: a source, or a list of them: the name of an experiment on this machine or on the broker, which may
            still run; a ``Results``; an ``optuna.Study``, or the URL or path of its storage; or a pair of a config and
            its value.
        searcher: the searcher that learns: "tpe", "ax", or another one that can.

    Raises:
        ConfigurationError: a source is invalid, or the searcher can't learn. When the experiment begins: a source has
            another metric or mode, can't be read, or has no trial that fits, or all trials together exceed
            ``MAX_LEARNT_BYTES``.
    """

    instead_of_several = "leave it out"

    def __init__(self, learn_from: object, searcher: Searcher | str = "tpe") -> None:
        is_one = not isinstance(learn_from, list | tuple) or _is_pair(learn_from)
        sources: list[Any] = [learn_from] if is_one else list(cast("Sequence[Any]", learn_from))
        for source in sources:
            if not _is_source(source):
                raise ConfigurationError(
                    f"WarmStart: {source!r:.200} is nothing to learn from; give the name of an experiment, a Results, "
                    "a study of Optuna or its storage, or a pair of a config and its value"
                )
        if not sources:
            raise ConfigurationError(
                "WarmStart: learn_from=[] is empty; give the name of an experiment, or leave WarmStart out"
            )
        self._sources = sources
        self.searcher = _learner(searcher)

    def check_objective(self, objective: Objective) -> None:
        """Check that the objective is one metric without outcome constraints."""
        super().check_objective(objective)
        if objective.constraints:
            raise ConfigurationError(
                "WarmStart: it is not known whether the past trials meet "
                f"{' and '.join(map(str, objective.constraints))}; leave that out of metric=, or don't use WarmStart"
            )

    @property
    def names(self) -> list[str]:
        """The names of the sources, as in the experiment's definition. All pairs are one source."""
        return list(dict.fromkeys(map(_name_of, self._sources)))

    def read(self, space: Space, metric: str, mode: str, *, broker: str) -> list[_Kept]:
        """Read the trials to learn from, in the form for definitions.

        Args:
            broker: URL of the experiment's broker, or empty.

        Raises:
            ConfigurationError: a source has another metric or mode, can't be read, or has no trial that fits, or the
                trials are too large.
            BrokerUnavailable: the broker doesn't answer.
        """
        pairs = [source for source in self._sources if _is_pair(source)]
        others = [_source_of(source, broker) for source in self._sources if not _is_pair(source)]
        trials: list[PastTrial] = []
        for source in [*others, *([_pairs_source(pairs)] if pairs else [])]:
            source.check(metric, mode)
            trials += _fitting(source, space)
        kept = [_storable(trial) for trial in trials]
        if (size := len(encode_value(kept))) > MAX_LEARNT_BYTES:
            raise ConfigurationError(
                f"WarmStart: the {len(kept):,} trials to learn from have {size:,} bytes, and the most is "
                f"{MAX_LEARNT_BYTES:,}; "
                "give the best of them, as pairs: WarmStart([(trial.config, trial.value) for trial in …])"
            )
        return kept


def teach(searcher: Searcher, learnt: Iterable[_Kept]) -> None:
    """Pass a definition's past trials to a searcher's ``learn``, one by one.

    Raises:
        UserCodeFailed: ``learn`` has raised an error.
    """
    for number, (config, value, step, status) in enumerate(learnt, 1):
        trial = PastTrial(config, math.nan if value is None else value, step, TrialStatus(status))
        try:
            searcher.learn(trial)
        except MqtuneError:
            raise
        except Exception as error:
            raise UserCodeFailed.by(searcher, "learn", f"trial {number} of those that it learns from", error) from error


def _learner(searcher: object) -> Searcher:
    known = ", ".join(searcher_names())
    if isinstance(searcher, str) and is_searcher_name(searcher):
        learner = searcher_named(searcher)
    elif isinstance(searcher, Searcher):
        learner = searcher
    else:
        raise ConfigurationError(
            f"WarmStart: searcher={searcher!r} is not a Searcher; give one, or the name of one ({known})"
        )
    if learner is None or not learner.can_learn:
        raise ConfigurationError(
            f"WarmStart: searcher={searcher!r} learns nothing from other trials; give one that has learn(), such as "
            "searcher='tpe'"
        )
    return learner


class _Source(NamedTuple):
    """The past trials of a source.

    Attributes:
        reader: returns, for a space, a function that converts the source's configs to configs of that space. The
            function raises SpaceError for a config that doesn't fit.
        metric, mode: the objective of the trials, or empty if the source doesn't know it.
    """

    name: str
    trials: list[PastTrial]
    reader: Callable[[Space], Callable[[Config], Config]]
    metric: str = ""
    mode: str = ""

    def check(self, metric: str, mode: str) -> None:
        for setting, theirs, ours in (("metric", self.metric, metric), ("mode", self.mode, mode)):
            if theirs and theirs != ours:
                raise ConfigurationError(
                    f"WarmStart: {self.name} has {setting}={theirs!r}, and this experiment {setting}={ours!r}; if the "
                    "values mean the same, give them as pairs: WarmStart([(trial.config, trial.value) for trial in …])"
                )


def _is_pair(source: object) -> bool:
    if not isinstance(source, tuple | list) or len(source) != 2:  # noqa: PLR2004 - a pair
        return False
    config, value = source
    # NumPy's scalars are Real too.
    return isinstance(config, Mapping) and isinstance(value, Real) and not isinstance(value, bool)


def _is_study(source: object) -> bool:
    # Optuna need not be installed.
    return callable(getattr(source, "get_trials", None)) and hasattr(source, "study_name")


def _is_source(source: object) -> bool:
    is_name = isinstance(source, str | Path) and bool(str(source).strip())
    return is_name or isinstance(source, Results) or _is_study(source) or _is_pair(source)


def _name_of(source: Any) -> str:
    if isinstance(source, Results):
        return source.name
    if _is_study(source):
        return f"study {source.study_name}"
    return _PAIRS if _is_pair(source) else redact(str(source))


_PAIRS: Final = "pairs of config and value"


def _source_of(source: Any, broker: str) -> _Source:
    if _is_study(source):
        return _study_source(source, _name_of(source))
    if isinstance(source, Results):
        return _experiment_source(source)
    return _named_source(str(source), broker)


def _named_source(name: str, broker: str) -> _Source:
    """Find the experiment on this machine, Optuna storage, or experiment on the broker."""
    if "://" in name:
        return _study_source(_optuna_importer().stored_study(name), redact(name))
    try:
        return _experiment_source(Results.load(find_experiment(name)))
    except (ConfigurationError, CopyIncomplete) as error:
        if Path(name).is_file():
            return _study_source(_optuna_importer().stored_study(Path(name)), name)
        if not broker:
            raise
        return _broker_source(name, broker, str(error))


def _broker_source(name: str, broker: str, not_here: str) -> _Source:
    with Client(broker) as client, tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
        if name not in [state.name for state in client.experiments()]:
            raise ConfigurationError(f"{not_here}; {client.place} has none of that name either")
        return _experiment_source(client.experiment(name).results(Path(folder)))


def _optuna_importer() -> Any:
    return load_point(IMPORTERS, "optuna")


def _study_source(study: Any, name: str) -> _Source:
    metric, mode = _optuna_importer().goal_of(study)
    return _Source(name, _optuna_importer().ended_trials(study), _optuna_importer().config_reader, metric, mode)


def _pairs_source(pairs: Sequence[tuple[Config, float]]) -> _Source:
    trials = [PastTrial(config, float(value), 1, TrialStatus.COMPLETED) for config, value in pairs]
    return _Source(_PAIRS, trials, _reader_of)


def _experiment_source(results: Results) -> _Source:
    experiment = results.experiment
    trials = [past for trial in experiment.trials.values() for past in _past_trials(trial, experiment.metric)]
    metric = experiment.metric if experiment.objective.is_single else str(experiment.objective)
    return _Source(experiment.name, trials, _reader_of, metric, experiment.mode)


def _past_trials(trial: Trial, metric: str) -> Iterator[PastTrial]:
    if not trial.status.is_terminal or not trial.status.expecting_data:
        return
    for metrics in (trial.last_metrics, trial.best_metrics):
        if is_number(value := metrics.get(metric)):
            step = metrics.get(ITERATION, trial.reports)
            yield PastTrial(trial.config, float(value), step if isinstance(step, int) else trial.reports, trial.status)
            return


def _reader_of(space: Space) -> Callable[[Config], Config]:
    return space.fit


def _fitting(source: _Source, space: Space) -> Iterator[PastTrial]:
    """Yield the trials that fit the space, with configs of the space. Log the number of others."""
    read, misfits = source.reader(space), []
    for trial in source.trials:
        try:
            yield trial._replace(config=read(trial.config))
        except SpaceError as error:
            misfits.append(str(error))
    count, of = len(misfits), f"of the {len(source.trials)} trials of {source.name}"
    if not source.trials:
        raise ConfigurationError(
            f"WarmStart: {source.name} has no COMPLETED or EARLY_STOPPED trial with a value to learn from"
        )
    if count == len(source.trials):
        raise ConfigurationError(f"WarmStart: none {of} fits the space; the first: {misfits[0]}")
    if misfits:
        logger.warning("WarmStart: %d %s don't fit the space and are left out; the first: %s", count, of, misfits[0])


def _storable(trial: PastTrial) -> _Kept:
    # NaN differs from itself, and a definition must not.
    value = trial.value if math.isfinite(trial.value) else None
    return (trial.config, value, trial.step, trial.status.value)
