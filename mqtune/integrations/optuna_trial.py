"""What an objective of Optuna gets in a trial's process: a trial whose calls travel to the study, which the driver has."""

from __future__ import annotations

import contextlib
import json
import warnings
import zlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from mqtune.extend import (
    PARAMETERS,
    Config,
    ConfigurationError,
    Metrics,
    adapter,
    decode_value,
    encode_value,
    install_command,
    reporting,
)
from mqtune.integrations.optuna_errors import name_of

try:
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
except ImportError as error:  # pragma: no cover - the tests have it
    raise ConfigurationError(f"Optuna can't be imported ({error}); {install_command('optuna')}") from error

#: Where a spec of an objective has its adapter: ``as_trainable``.
ADAPTER: Final = f"{__name__}:as_trainable"
#: The key that says, in each report of an objective, which call it is.
CALL: Final = "call"
#: The key of the parameters that a trial has got since the report before: name, distribution and value of each.
TOOK: Final = "took"
#: The calls after which a trial waits for an answer.
ASKED: Final = frozenset({"begin", "suggest", "should_prune", "user_attrs", "system_attrs", "constraints", "study"})
#: Errors that are raised again as what they were; others of the driver become RuntimeError.
_ERRORS: Final = {each.__name__: each for each in (ValueError, TypeError, KeyError, NotImplementedError)}
#: What an objective may ask of its study.
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
    """Return what stands for a distribution's text where that would be too long."""
    return zlib.crc32(distribution.encode())


def text_with_tuples(distribution: BaseDistribution) -> str:
    """Return a distribution as Optuna's JSON of it, with choices that are tuples beside that, which has lists for them."""
    text = distribution_to_json(distribution)
    if not (
        isinstance(distribution, CategoricalDistribution)
        and any(isinstance(each, tuple | list) for each in distribution.choices)
    ):
        return text
    return json.dumps({**json.loads(text), "choices": [_with_tuples(each) for each in distribution.choices]})


def distribution_of(text: str, *, keep_tuples: bool) -> BaseDistribution:
    """Return the distribution of a text of ``text_with_tuples``; without *keep_tuples* its choices have lists for them."""
    said = json.loads(text)
    if keep_tuples and "choices" in said:
        return CategoricalDistribution([_as_told(each) for each in said["choices"]])
    return json_to_distribution(text)


def _with_tuples(value: object) -> object:
    match value:
        case tuple():
            return {"tuple": [_with_tuples(each) for each in value]}
        case list():
            return [_with_tuples(each) for each in value]
        case dict():
            return {"dict": {key: _with_tuples(each) for key, each in value.items()}}
    return value


def _as_told(value: Any) -> Any:
    match value:
        case {"tuple": entries}:
            return tuple(_as_told(each) for each in entries)
        case {"dict": entries}:
            return {key: _as_told(each) for key, each in entries.items()}
        case list():
            return [_as_told(each) for each in value]
    return value


class StudyView:
    """What an objective sees of its study: names, directions, the best so far, and ``stop``."""

    def __init__(self, name: str, directions: Sequence[str]) -> None:
        self.study_name = name
        self.directions = [StudyDirection[each] for each in directions]

    @property
    def direction(self) -> StudyDirection:
        """The only objective's direction.

        Raises:
            RuntimeError: there are several.
        """
        if len(self.directions) > 1:
            raise RuntimeError("A single direction cannot be retrieved from a multi-objective study.")
        return self.directions[0]

    def stop(self) -> None:
        """Have no other trial begin; those that run go on to their ends."""
        _tell("stop")

    def __getattr__(self, name: str) -> object:
        if name in STUDY:
            return _ask("study", name=name)
        raise AttributeError(
            f"an objective on a worker has no study.{name}: the study is the driver's, and of it there are study_name, "
            f"directions, stop(), {', '.join(sorted(STUDY))}"
        )


class OwnAttributes:
    """What ``trial.storage`` is in an objective: the attributes of that trial, as Optuna's artifacts and terminators use them."""

    def __init__(self, trial: WorkerTrial, trial_id: int) -> None:
        self._trial, self._id = trial, trial_id

    def set_trial_user_attr(self, trial_id: int, key: str, value: object) -> None:
        """Set a user attribute."""
        self._own(trial_id).set_user_attr(key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: object) -> None:
        """Set a system attribute."""
        self._own(trial_id).set_system_attr(key, value)

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, object]:
        """Return the system attributes."""
        return self._own(trial_id).system_attrs

    def _own(self, trial_id: int) -> WorkerTrial:
        if trial_id != self._id:
            raise KeyError(
                f"an objective on a worker has the attributes of its own trial alone, and not of trial id {trial_id}"
            )
        return self._trial

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"an objective on a worker has no trial.storage.{name}: the storage is the driver's; there are set_trial_user_attr, "
            "set_trial_system_attr and get_trial_system_attrs of its own trial"
        )


class WorkerTrial(Trial):
    """A trial of a study, in the process that evaluates it; it is used as ``optuna.trial.Trial`` is.

    It is one for ``isinstance``, and has nothing of its state: each public method is replaced here.

    ``should_prune`` waits for the driver, and ``suggest_*`` where the driver has not foreseen it; ``report`` and what sets an
    attribute don't.
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
        #: What an earlier attempt was given, by name: the distribution's mark and the value.
        self._known: dict[str, Sequence[Any]] = dict(begun["known"])
        #: What it is given if it asks for nothing else before: name, mark and value of each.
        self._ahead: list[Sequence[Any]] = list(begun["ahead"])
        self._took: list[object] = []
        self.study = StudyView(begun["study"], begun["directions"])

    @property
    def number(self) -> int:
        """Its number in the study."""
        return self._number

    @property
    def datetime_start(self) -> datetime | None:
        """When it began, by the driver's clock."""
        return self._datetime_start

    @property
    def params(self) -> dict[str, Any]:
        """What was suggested so far."""
        return dict(self._params)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """From which distributions."""
        return dict(self._distributions)

    @property
    def user_attrs(self) -> dict[str, Any]:
        """Its user attributes, those of a queued trial included."""
        return dict(self._ask("user_attrs"))

    @property
    def system_attrs(self) -> dict[str, Any]:
        """Its system attributes."""
        return dict(self._ask("system_attrs"))

    @property
    def constraints(self) -> dict[str, float]:
        """Its constraints, as far as they are set."""
        return dict(self._ask("constraints"))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Suggest a number; as Optuna's."""
        return float(self._suggest(name, FloatDistribution(low, high, log=log, step=step)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Suggest a whole number; as Optuna's."""
        return int(self._suggest(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Suggest one of the choices, which are None, flags, numbers or texts; as Optuna's."""
        return self._suggest(name, CategoricalDistribution(choices))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        """Suggest a number; as Optuna's."""
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        """Suggest a number on a logarithmic scale; as Optuna's."""
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        """Suggest a multiple of *q*; as Optuna's."""
        return self.suggest_float(name, low, high, step=q)

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        known = self._distributions.get(name)
        if known is None:
            chosen = self._chosen(name, distribution)
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

    def _chosen(self, name: str, distribution: BaseDistribution) -> float:
        """Return the value of a parameter that is new to this attempt, as the study's storage has it."""
        mark, text = mark_of(distribution_to_json(distribution)), text_with_tuples(distribution)
        known, value = self._known.get(name, (None, 0.0))
        if known == mark:
            return float(value)
        if self._ahead and [*self._ahead[0][:2]] == [name, mark]:
            value = self._ahead.pop(0)[2]
            self._took.append([name, text, value])
            if not self._ahead:
                self._params[name] = distribution.to_external_repr(value)
                # As a rule it asks for no more, and may compute for long: samplers are to know what it computes with.
                self.tell(TOOK)
        else:
            # What was foreseen was not for a trial that asks this.
            self._ahead.clear()
            value = self._ask("suggest", name=name, distribution=text)
            self._took.append([name, text, value])
        return float(value)

    def _ask(self, call: str, **arguments: object) -> Any:
        return _ask(call, **self._taken(), **arguments)

    def tell(self, call: str, **arguments: object) -> None:
        """Say something to the driver, and with it what parameters it has got."""
        _tell(call, **{**self._taken(), **arguments})

    def _taken(self) -> dict[str, object]:
        took, self._took = self._took, []
        return {TOOK: took, PARAMETERS: _shown(self)} if took else {}

    def report(self, value: float, step: int) -> None:
        """Report the objective's value at a step; the first of each step counts. As Optuna's."""
        if len(self.study.directions) > 1:
            raise NotImplementedError("Trial.report is not supported for multi-objective optimization.")
        number, at = float(value), int(step)
        if at < 0:
            raise ValueError(f"The `step` argument is {step} but cannot be negative.")
        if at not in self._steps:
            self._steps.add(at)
            self.tell("report", intermediate=number, step=at)

    def should_prune(self) -> bool:
        """Whether the study's pruner would end the trial here; as Optuna's."""
        if len(self.study.directions) > 1:
            raise NotImplementedError("Trial.should_prune is not supported for multi-objective optimization.")
        return bool(self._ask("should_prune"))

    def set_user_attr(self, key: str, value: object) -> None:
        """Set a user attribute of plain values; TypeError for others, as with Optuna's databases."""
        self.tell("set_user_attr", key=key, attr=_as_plain(value))

    def set_system_attr(self, key: str, value: object) -> None:
        """Set a system attribute of plain values; TypeError for others, as with Optuna's databases."""
        self.tell("set_system_attr", key=key, attr=_as_plain(value))

    def set_constraint(self, key: str, value: float) -> None:
        """Set a constraint, which holds at 0 and below (Optuna 5); as Optuna's."""
        if not hasattr(Trial, "set_constraint"):
            raise AttributeError("set_constraint: this version of Optuna has no constraints of trials; Optuna 5 has")
        self.tell("set_constraint", key=key, attr=float(value))


@adapter
def as_trainable(objective: Callable[[Trial], object]) -> Callable[[Config], None]:
    """Return an objective as a function of a config, which it has none of: what a worker runs."""

    def run(_: Config) -> None:
        begun = _ask("begin")
        # An earlier attempt has come to its end, and its worker died before it could say so.
        if begun is None:
            return
        trial = WorkerTrial(begun)
        try:
            value = objective(trial)
        except TrialPruned as pruned:
            trial.tell("end", state="PRUNED", reason=str(pruned), **{PARAMETERS: _shown(trial)})
        except Exception as error:
            kinds = [name_of(kind, objective) for kind in type(error).__mro__]
            trial.tell("end", state="FAIL", kinds=kinds, **{PARAMETERS: _shown(trial)})
            raise
        else:
            _end(trial, value)

    run.__name__ = getattr(objective, "__name__", "objective")
    return run


def _end(trial: WorkerTrial, value: object) -> None:
    """Report what an objective has returned; whether the study can take it is seen there."""
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    numbers = [_as_number(each) for each in values]
    only = {"value": numbers[0]} if len(numbers) == 1 and isinstance(numbers[0], float) else {}
    trial.tell("end", state="", values=numbers, **{PARAMETERS: _shown(trial)}, **only)


def _as_number(value: Any) -> float | str | None:
    """Return a value as the study casts it; the text of one that it can't."""
    if value is None:
        return None
    with contextlib.suppress(TypeError, ValueError):
        return float(value)
    return repr(value)


def _as_plain(value: object) -> object:
    """Return an attribute as any storage takes it, an array as a list; the study's would refuse it where no objective can catch that.

    Raises:
        TypeError: it has values that JSON has not.
    """
    # NumPy's arrays, as scikit-learn returns scores, and others' have it.
    tolist = getattr(value, "tolist", None)
    plain: object = decode_value(encode_value(tolist() if callable(tolist) else value))
    json.dumps(plain)
    return plain


def _shown(trial: WorkerTrial) -> dict[str, object]:
    """Return the parameters for who looks at the experiment."""
    shown: dict[str, object] = json.loads(json.dumps(trial.params, default=repr))
    return shown
