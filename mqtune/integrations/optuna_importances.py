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
    """A parameter with its value in each trial, as a number."""

    @property
    def places(self) -> list[float]:
        """Its value in each trial, or the value's index in ``names``. NaN if a trial lacks it."""

    @property
    def is_log(self) -> bool:
        """Whether its scale is logarithmic."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its values; empty if they are numbers."""


def importances(parameters: Sequence[Fitted], values: Sequence[float]) -> list[float]:
    """Return each parameter's share of the variance of *values*.

    The shares add up to 1, or are all 0. In a trial that lacks a parameter, the parameter's median counts, or an
    additional name if it has names.

    Raises:
        ConfigurationError: scikit-learn is not installed.
    """
    distributions = {str(number): _distribution(parameter) for number, parameter in enumerate(parameters)}
    columns = [_filled_places(parameter) for parameter in parameters]
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


def _filled_places(parameter: Fitted) -> list[float]:
    missing: float = (
        len(parameter.names) if parameter.names else median(p for p in parameter.places if not math.isnan(p))
    )
    return [missing if math.isnan(place) else place for place in parameter.places]


def _distribution(parameter: Fitted) -> BaseDistribution:
    filled = _filled_places(parameter)
    if parameter.names:
        return CategoricalDistribution(sorted(set(filled)))
    return FloatDistribution(min(filled), max(filled), log=parameter.is_log)
