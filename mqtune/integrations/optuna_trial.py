"""An objective's trial in a worker's process. The driver's study answers its calls."""

from __future__ import annotations

import contextlib
import json
import warnings
import zlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from mqtune.extend import PARAMETERS, Config, Metrics, adapter, decode_value, encode_value, importing, reporting
from mqtune.integrations.optuna_errors import name_of

with importing("Optuna", "optuna"):
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
        check_distribution_compatibility,
        distribution_to_json,
        json_to_distribution,
    )
    from optuna.exceptions import TrialPruned
    from optuna.study import StudyDirection
    from optuna.trial import Trial

    from mqtune.integrations.optuna_private import give_id

#: The adapter's name in an objective's spec.
ADAPTER: Final = f"{__name__}:as_trainable"
#: The key of the called method in an objective's report.
CALL: Final = "call"
#: The key of the parameters used since the last report: name, distribution and value of each.
TOOK: Final = "took"
#: Calls that wait for an answer.
ASKED: Final = frozenset({"begin", "suggest", "should_prune", "user_attrs", "system_attrs", "constraints", "study"})
#: Errors of the driver that keep their type. All others become RuntimeError.
_ERRORS: Final = {kind.__name__: kind for kind in (ValueError, TypeError, KeyError, NotImplementedError)}
#: The study's attributes that an objective may read.
STUDY: Final = frozenset({"best_value", "best_values", "best_params", "user_attrs"})


def _ask(call: str, **arguments: object) -> Any:
    answer: Any = reporting.ask({CALL: call, **arguments})
    if "error" in answer:
        kind, text = answer["error"]
        raise _ERRORS.get(kind, RuntimeError)(text)
    return answer["is"]


def _tell(call: str, **arguments: object) -> None:
    reporting.report({CALL: call, **arguments})


def mark_of(distribution: str) -> int:
    """Return a hash of a distribution's text, to compare distributions."""
    return zlib.crc32(distribution.encode())


def text_with_tuples(distribution: BaseDistribution) -> str:
    """Return a distribution as JSON, with marked tuples. Optuna's own JSON turns them into lists."""
    text = distribution_to_json(distribution)
    if not (
        isinstance(distribution, CategoricalDistribution)
        and any(isinstance(choice, tuple | list) for choice in distribution.choices)
    ):
        return text
    return json.dumps({**json.loads(text), "choices": [_mark_tuples(choice) for choice in distribution.choices]})


def distribution_of(text: str, *, keep_tuples: bool) -> BaseDistribution:
    """Decode ``text_with_tuples``. Without *keep_tuples*, tuples become lists."""
    said = json.loads(text)
    if keep_tuples and "choices" in said:
        return CategoricalDistribution([_restore_tuples(choice) for choice in said["choices"]])
    return json_to_distribution(text)


def _mark_tuples(value: object) -> object:
    match value:
        case tuple():
            return {"tuple": [_mark_tuples(item) for item in value]}
        case list():
            return [_mark_tuples(item) for item in value]
        case dict():
            return {"dict": {key: _mark_tuples(item) for key, item in value.items()}}
    return value


def _restore_tuples(value: Any) -> Any:
    match value:
        case {"tuple": entries}:
            return tuple(_restore_tuples(entry) for entry in entries)
        case {"dict": entries}:
            return {key: _restore_tuples(entry) for key, entry in entries.items()}
        case list():
            return [_restore_tuples(item) for item in value]
    return value


class StudyView:
    """The study as an objective sees it: name, directions, best results, and ``stop``."""

    def __init__(self, name: str, directions: Sequence[str]) -> None:
        self.study_name = name
        self.directions = [StudyDirection[direction] for direction in directions]

    @property
    def direction(self) -> StudyDirection:
        """The only direction.

        Raises:
            RuntimeError: there are several.
        """
        if len(self.directions) > 1:
            raise RuntimeError("A single direction cannot be retrieved from a multi-objective study.")
        return self.directions[0]

    def stop(self) -> None:
        """Let no further trial begin. Running ones continue."""
        _tell("stop")

    def __getattr__(self, name: str) -> object:
        if name in STUDY:
            return _ask("study", name=name)
        raise AttributeError(
            f"an objective on a worker has no study.{name}: the study is in the driver's process; available here are "
            f"study_name, directions, stop(), {', '.join(sorted(STUDY))}"
        )


class OwnAttributes:
    """An objective's ``trial.storage``: the trial's own attributes, for artifacts and terminators."""

    def __init__(self, trial: WorkerTrial, trial_id: int) -> None:
        self._trial, self._id = trial, trial_id

    def set_trial_user_attr(self, trial_id: int, key: str, value: object) -> None:
        self._own(trial_id).set_user_attr(key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: object) -> None:
        self._own(trial_id).set_system_attr(key, value)

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, object]:
        return self._own(trial_id).system_attrs

    def _own(self, trial_id: int) -> WorkerTrial:
        if trial_id != self._id:
            raise KeyError(
                "an objective on a worker has only the attributes of its own trial, and not those of trial id "
                f"{trial_id}"
            )
        return self._trial

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"an objective on a worker has no trial.storage.{name}: the storage is in the driver's process; available "
            "here are set_trial_user_attr, set_trial_system_attr and get_trial_system_attrs, for its own trial"
        )


class WorkerTrial(Trial):
    """A trial for an objective in a worker's process, used like ``optuna.trial.Trial``.

    It is a subclass only for ``isinstance``: each public method is replaced. ``should_prune`` waits for the driver. So
    does ``suggest_*`` for parameters that were not prepared. ``report`` and setters of attributes don't wait.
    """

    study: StudyView  # type: ignore[assignment]
    storage: OwnAttributes  # type: ignore[assignment]

    def __init__(self, begun: Metrics) -> None:
        id_ = int(begun["id"])
        give_id(self, id_)
        self.storage = OwnAttributes(self, id_)
        self._number = int(begun["number"])
        self._datetime_start = datetime.fromisoformat(begun["start"])
        self._params: dict[str, Any] = {}
        self._distributions: dict[str, BaseDistribution] = {}
        self._steps: set[int] = set()
        #: The parameters of an earlier attempt by name: the distribution's mark and the value of each.
        self._known: dict[str, Sequence[Any]] = dict(begun["known"])
        #: The prepared parameters in the order of the expected calls: name, mark and value of each.
        self._ahead: list[Sequence[Any]] = list(begun["ahead"])
        self._took: list[object] = []
        self.study = StudyView(begun["study"], begun["directions"])

    @property
    def number(self) -> int:
        """Its number in the study."""
        return self._number

    @property
    def datetime_start(self) -> datetime | None:
        """Its start, by the driver's clock."""
        return self._datetime_start

    @property
    def params(self) -> dict[str, Any]:
        """The suggested values."""
        return dict(self._params)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The suggested values' distributions."""
        return dict(self._distributions)

    @property
    def user_attrs(self) -> dict[str, Any]:
        """Its user attributes, including those of an enqueued trial."""
        return dict(self._ask("user_attrs"))

    @property
    def system_attrs(self) -> dict[str, Any]:
        """Its system attributes."""
        return dict(self._ask("system_attrs"))

    @property
    def constraints(self) -> dict[str, float]:
        """The constraints that were set so far."""
        return dict(self._ask("constraints"))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return float(self._suggest(name, FloatDistribution(low, high, log=log, step=step)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return int(self._suggest(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Suggest one of *choices*, each of which is None, a boolean, a number or a text."""
        return self._suggest(name, CategoricalDistribution(choices))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        return self.suggest_float(name, low, high, step=q)

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        known = self._distributions.get(name)
        if known is None:
            chosen = self._new_value(name, distribution)
            self._distributions[name] = distribution
            self._params[name] = distribution.to_external_repr(chosen)
        elif known != distribution:
            check_distribution_compatibility(known, distribution)
            warnings.warn(
                f"parameter {name!r} was suggested from {known} before in this trial: that value counts",
                RuntimeWarning,
                stacklevel=3,
            )
        return self._params[name]

    def _new_value(self, name: str, distribution: BaseDistribution) -> float:
        """Return the internal value of a parameter that is new to this attempt."""
        mark, text = mark_of(distribution_to_json(distribution)), text_with_tuples(distribution)
        known, value = self._known.get(name, (None, 0.0))
        if known == mark:
            return float(value)
        if self._ahead and [*self._ahead[0][:2]] == [name, mark]:
            value = self._ahead.pop(0)[2]
            self._took.append([name, text, value])
            if not self._ahead:
                self._params[name] = distribution.to_external_repr(value)
                # Usually the objective asks for no more, and computes for long. Samplers should know the parameters
                # now.
                self.tell(TOOK)
        else:
            # The objective asks for other parameters than the previous one.
            self._ahead.clear()
            value = self._ask("suggest", name=name, distribution=text)
            self._took.append([name, text, value])
        return float(value)

    def _ask(self, call: str, **arguments: object) -> Any:
        return _ask(call, **self._used_parameters(), **arguments)

    def tell(self, call: str, **arguments: object) -> None:
        """Send a call to the driver, with the parameters used since the last one."""
        _tell(call, **{**self._used_parameters(), **arguments})

    def _used_parameters(self) -> dict[str, object]:
        took, self._took = self._took, []
        return {TOOK: took, PARAMETERS: _readable_parameters(self)} if took else {}

    def report(self, value: float, step: int) -> None:
        """Report the objective's value at a step. The first value of each step counts."""
        if len(self.study.directions) > 1:
            raise NotImplementedError("Trial.report is not supported for multi-objective optimization.")
        number, at = float(value), int(step)
        if at < 0:
            raise ValueError(f"The `step` argument is {step} but cannot be negative.")
        if at not in self._steps:
            self._steps.add(at)
            self.tell("report", intermediate=number, step=at)

    def should_prune(self) -> bool:
        """Return whether the study's pruner would end the trial now."""
        if len(self.study.directions) > 1:
            raise NotImplementedError("Trial.should_prune is not supported for multi-objective optimization.")
        return bool(self._ask("should_prune"))

    def set_user_attr(self, key: str, value: object) -> None:
        """Set a user attribute to a plain value. Other values raise TypeError."""
        self.tell("set_user_attr", key=key, attr=_as_plain(value))

    def set_system_attr(self, key: str, value: object) -> None:
        """Set a system attribute to a plain value. Other values raise TypeError."""
        self.tell("set_system_attr", key=key, attr=_as_plain(value))

    def set_constraint(self, key: str, value: float) -> None:
        """Set the value of a constraint, which is satisfied at 0 and below. It needs Optuna 5."""
        if not hasattr(Trial, "set_constraint"):
            raise AttributeError("set_constraint: this version of Optuna has no constraints of trials; Optuna 5 has")
        self.tell("set_constraint", key=key, attr=float(value))


@adapter
def as_trainable(objective: Callable[[Trial], object]) -> Callable[[Config], None]:
    """Wrap an objective as a trainable. The config is ignored."""

    def run(_: Config) -> None:
        begun = _ask("begin")
        # The trial has ended in an earlier attempt, but the worker died before it reported that.
        if begun is None:
            return
        trial = WorkerTrial(begun)
        try:
            value = objective(trial)
        except TrialPruned as pruned:
            trial.tell("end", state="PRUNED", reason=str(pruned), **{PARAMETERS: _readable_parameters(trial)})
        except Exception as error:
            kinds = [name_of(kind, objective) for kind in type(error).__mro__]
            trial.tell("end", state="FAIL", kinds=kinds, **{PARAMETERS: _readable_parameters(trial)})
            raise
        else:
            _end(trial, value)

    run.__name__ = getattr(objective, "__name__", "objective")
    return run


def _end(trial: WorkerTrial, value: object) -> None:
    """Report an objective's result. The study validates it."""
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    numbers = [_as_number(number) for number in values]
    only = {"value": numbers[0]} if len(numbers) == 1 and isinstance(numbers[0], float) else {}
    trial.tell("end", state="", values=numbers, **{PARAMETERS: _readable_parameters(trial)}, **only)


def _as_number(value: Any) -> float | str | None:
    """Return a value as a float, as text if that fails, or None for None."""
    if value is None:
        return None
    with contextlib.suppress(TypeError, ValueError):
        return float(value)
    return repr(value)


def _as_plain(value: object) -> object:
    """Return an attribute as a plain value, an array as a list.

    It is checked here, since an objective could not catch a later error of the study.

    Raises:
        TypeError: JSON can't represent it.
    """
    # For NumPy arrays and similar ones.
    tolist = getattr(value, "tolist", None)
    plain: object = decode_value(encode_value(tolist() if callable(tolist) else value))
    json.dumps(plain)
    return plain


def _readable_parameters(trial: WorkerTrial) -> dict[str, object]:
    """Return a trial's parameters as JSON values, with the text of other values."""
    shown: dict[str, object] = json.loads(json.dumps(trial.params, default=repr))
    return shown
