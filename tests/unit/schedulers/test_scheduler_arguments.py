"""Schedulers refuse invalid arguments by name and value, and the error says which values are accepted."""

from __future__ import annotations

import math
from typing import Any

import pytest

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.schedulers import PBTReplay, PolicyStep


def pbt(**arguments: Any) -> object:
    return mqtune.PBT(**{"perturbation_interval": 2, "hyperparam_mutations": {"lr": [1, 2]}, **arguments})


def mutating(**entries: Any) -> object:
    return pbt(hyperparam_mutations=entries)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mqtune.FIFO(batch=0), "batch"),
        (lambda: mqtune.FIFO(batch=1.5), "batch"),  # type: ignore[arg-type]
        (lambda: mqtune.FIFO(batch=True), "batch"),
        # ASHA and its kin.
        (lambda: mqtune.ASHA(0), "max_t=0 must not be below grace_period=1"),
        (lambda: mqtune.ASHA(4, grace_period=5), "max_t=4 must not be below grace_period=5"),
        (lambda: mqtune.ASHA("27"), "max_t='27' is not a finite number"),  # type: ignore[arg-type]
        (lambda: mqtune.ASHA(27, grace_period=0), "grace_period=0 must be above 0"),
        (lambda: mqtune.ASHA(27, grace_period=None), "grace_period=None is not"),  # type: ignore[arg-type]
        (lambda: mqtune.ASHA(27, reduction_factor=1), "reduction_factor=1 must be above 1; 3 or 4 is usual"),
        (lambda: mqtune.ASHA(27, reduction_factor=1.0001), "reduction_factor=1.0001 makes more than 1000 rungs"),
        (lambda: mqtune.ASHA(27, time_attr=""), "time_attr='' is not a name"),
        (lambda: mqtune.ASHA(27, brackets=0), "ASHA: brackets=0 is not a whole number of at least 1"),
        (lambda: mqtune.ASHA(27, brackets=5), r"brackets=5 is too large; give at most 4, as the rungs are \[1, 3, 9, 27\]"),
        (lambda: mqtune.ASHA(27, stop_last_trials=0), "stop_last_trials=0 is neither True nor False"),
        (lambda: mqtune.PromotionASHA(0), "PromotionASHA: max_t=0 must not be below grace_period=1"),
        (lambda: mqtune.PromotionASHA(9, time_attr=3), "PromotionASHA: time_attr=3 is not a name"),  # type: ignore[arg-type]
        (lambda: mqtune.PromotionASHA(9, cost=""), "PromotionASHA: cost='' is not a name"),
        (lambda: mqtune.PromotionASHA(27, brackets=True), "brackets=True is not a whole number"),
        (lambda: mqtune.PASHA(0), "PASHA: max_t=0 must not be below grace_period=1"),
        (lambda: mqtune.RUSH(27, 0), "RUSH: candidates=0 is not a whole number of at least 1"),
        (lambda: mqtune.MOASHA(0), "MOASHA: max_t=0 must not be below grace_period=1"),
        (lambda: mqtune.HyperBand(0.5), r"HyperBand: max_t=0\.5 must not be below grace_period=1"),
        (lambda: mqtune.HyperBand(27, reduction_factor=1), "HyperBand: reduction_factor=1 must be above 1"),
        (lambda: mqtune.HyperBand(27, reduction_factor=1.0001), r"reduction_factor=1\.0001 makes more than 1000 rungs"),
        (lambda: mqtune.HyperBand(27, brackets=5), r"HyperBand: brackets=5 is too large; with this max_t and grace_period, give at most 4"),
        # The median rule.
        (lambda: mqtune.MedianStopping(interval=0), "MedianStopping: interval=0 must be above 0"),
        (lambda: mqtune.MedianStopping(grace_period=-1), "MedianStopping: grace_period=-1 must not be below 0"),
        (lambda: mqtune.MedianStopping(min_samples=0), "min_samples=0 is not a whole number of at least 1"),
        (lambda: mqtune.MedianStopping(cutoff=0), "cutoff=0 must be above 0 and below 1; 0.5 is the median"),
        (lambda: mqtune.MedianStopping(min_run_s=-1), "MedianStopping: min_run_s=-1 must not be below 0"),
        (lambda: mqtune.MedianStopping(against="all"), "MedianStopping: against='all'"),  # type: ignore[arg-type]
        (lambda: mqtune.MedianStopping(min_completed=-1), "MedianStopping: min_completed=-1"),
        (lambda: mqtune.MedianStopping(time_attr=""), "MedianStopping: time_attr='' is not a name"),
        # Population-based training.
        (lambda: pbt(perturbation_interval=0), "PBT: perturbation_interval=0 must be above 0"),
        (lambda: pbt(quantile_fraction=0.6), "PBT: quantile_fraction=0.6 must be above 0 and at most 0.5"),
        (lambda: pbt(resample_probability=1.1), "PBT: resample_probability=1.1 is not from 0 to 1"),
        (lambda: pbt(perturbation_factors=()), "PBT: perturbation_factors=.* is not a list of numbers"),
        (lambda: pbt(perturbation_factors=(1.2, 0)), "PBT: perturbation_factors=.* must be above 0"),
        (lambda: pbt(hyperparam_mutations={}), "PBT: nothing would change"),
        (lambda: pbt(hyperparam_mutations=["lr"]), r"PBT: hyperparam_mutations=\['lr'\] is not a dict"),
        (lambda: pbt(hyperparam_mutations={3: [1]}), "the key 3, which is not a name"),
        (lambda: mutating(a={"lr": 3}), r"hyperparam_mutations\['a/lr'\]=3 is nothing to draw from"),
        (lambda: mutating(lr=mqtune.sample_from(dict)), "is nothing to draw from"),
        (lambda: mutating(opt=mqtune.choice([{"lr": mqtune.uniform(0, 1)}, 3])), r"\['opt'\]=choice\(\[.* is nothing to draw from; .* name those: {'optimizer': {'lr'"),
        (lambda: mutating(opt=[mqtune.uniform(0, 1), 3]), r"\['opt'\]=.* is nothing to draw from"),
        (lambda: mutating(lr=[]), "the list .* is empty"),
        (lambda: pbt(explore=3), "PBT: explore=3 is not a function"),
        (lambda: pbt(seed=1.5), "PBT: seed=1.5 is not a whole number"),
        (lambda: pbt(time_attr=""), "PBT: time_attr='' is not a name"),
        (lambda: pbt(population_size=1), "PBT: population_size=1 is not a whole number of at least 2"),
        (lambda: pbt(synchronous=1, population_size=2), "PBT: synchronous=1 is neither True nor False"),
        (lambda: pbt(synchronous=True), "PBT: synchronous=True needs population_size"),
        (lambda: PBTReplay([]), "is not a list of steps"),
        (lambda: PBTReplay("policy"), "is not a list of steps"),  # type: ignore[arg-type]
        (lambda: PBTReplay([(0, {})]), "is not a PolicyStep"),  # type: ignore[list-item]
        (lambda: PBTReplay([PolicyStep(0, "config")]), "is not a PolicyStep"),  # type: ignore[arg-type]
        (lambda: PBTReplay([PolicyStep(1, {})]), "the first step begins at 1; it must begin at 0"),
        (lambda: PBTReplay([PolicyStep(0, {}), PolicyStep(0, {})]), "begins at 0, not after the one before at 0"),
        (lambda: PBTReplay([PolicyStep(0, {}), PolicyStep(math.nan, {})]), "is not a finite number"),
    ],
)  # fmt: skip
def test_an_argument_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
