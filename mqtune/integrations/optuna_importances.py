"""Importances of parameters, by Optuna's fANOVA."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final, Protocol

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.importance import FanovaImportanceEvaluator
from optuna.trial import create_trial

from mqtune.extend import ConfigurationError, install_command
from mqtune.integrations.optuna import quiet

_SEED: Final = 0


class Fitted(Protocol):
    """A parameter's place in each trial, or NaN."""

    @property
    def places(self) -> list[float]:
        """The place in each trial."""

    @property
    def is_log(self) -> bool:
        """Whether places are logarithmic."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of places that are not numbers."""


def importances(parameters: Sequence[Fitted], values: Sequence[float]) -> list[float]:
    """Return each parameter's share of the variance of *values*; they sum to 1, or 0.

    A NaN place counts as the others' median, or as another name.

    Raises:
        ConfigurationError: scikit-learn is not installed.
    """
    distributions = {str(number): _distribution(parameter) for number, parameter in enumerate(parameters)}
    columns = [_filled(parameter) for parameter in parameters]
    with quiet():
        study = optuna.create_study()
        study.add_trials(
            create_trial(
                value=value,
                params={name: column[row] for name, column in zip(distributions, columns, strict=True)},
                distributions=distributions,
            )
            for row, value in enumerate(values)
        )
        try:
            shares = optuna.importance.get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=_SEED))
        except ImportError as error:
            raise ConfigurationError(f"importances need scikit-learn: {install_command('plot')} ({error})") from None
    return [shares[name] for name in distributions]


def _filled(parameter: Fitted) -> list[float]:
    missing: float = (
        len(parameter.names) if parameter.names else median(p for p in parameter.places if not math.isnan(p))
    )
    return [missing if math.isnan(place) else place for place in parameter.places]


def _distribution(parameter: Fitted) -> BaseDistribution:
    filled = _filled(parameter)
    if parameter.names:
        return CategoricalDistribution(sorted(set(filled)))
    return FloatDistribution(min(filled), max(filled), log=parameter.is_log)
