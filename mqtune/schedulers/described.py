"""Schedulers made again from their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.registry import rebuilt
from mqtune.schedulers.asha import ASHA, PromotionASHA
from mqtune.schedulers.base import FIFO, Scheduler
from mqtune.schedulers.hyperband import HyperBand
from mqtune.schedulers.median import MedianStopping
from mqtune.schedulers.pbt import PBT
from mqtune.schedulers.policy import PBTReplay, PolicyStep
from mqtune.search.domains import domain_of
from mqtune.search.space import nested

__all__ = ["scheduler_of"]


def scheduler_of(description: Mapping[str, Any]) -> Scheduler:
    """Return a scheduler that describes itself so, at its beginning.

    Raises:
        ConfigurationError: its class, or a function that it was given, stands in the user's code alone.
    """
    return rebuilt("scheduler", _KINDS, description)


def _pbt(*, hyperparam_mutations: Mapping[str, Any], explore: str | None, **arguments: Any) -> PBT:
    if explore is not None:
        raise ConfigurationError(f"the scheduler 'pbt' explores with a function of yours, {explore}")
    mutations = {path: domain_of(domain) for path, domain in hyperparam_mutations.items()}
    return PBT(hyperparam_mutations=nested(mutations), **arguments)


def _pbt_replay(*, policy: list[list[Any]], **arguments: Any) -> PBTReplay:
    return PBTReplay([PolicyStep(time, config) for time, config in policy], **arguments)


_KINDS: Final[dict[str, Callable[..., Scheduler]]] = {
    "asha": ASHA,
    "fifo": FIFO,
    "hyperband": HyperBand,
    "median_stopping": MedianStopping,
    "pbt": _pbt,
    "pbt_replay": _pbt_replay,
    "promotion_asha": PromotionASHA,
}
