"""Going on with an experiment without its script: what it is, and where, from what is kept of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import SERVER_FOLDER, mqtune_home
from mqtune.core.resources import Resources
from mqtune.driver.connect import BrokerPlace
from mqtune.driver.retention import Retention
from mqtune.driver.settings import Plan
from mqtune.journal.copy import JOURNAL_FILE
from mqtune.results.experiments import saved_experiments
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.stopping.rule import StopRule
from mqtune.search.base import Searcher
from mqtune.search.points import searcher_of
from mqtune.search.space import Space, space_of
from mqtune.trainable.spec import AnyTrainable, TrainableSpec, refuse_on_import

__all__ = ["attached"]

#: Experiments that an error names; more would not be read.
_SHOWN: Final = 10
#: What a definition says in the words of the plan's arguments.
_SAME: Final = (
    "metric",
    "mode",
    "seed",
    "max_failures",
    "max_concurrent",
    "start_method",
    "sync",
    "ttl_s",
    "time_budget_s",
    "trial_time_budget_s",
    "fail_fast",
    "accept_no_report",
    "pass_config",
    "pass_checkpoint_dir",
    "delete_checkpoints",
    "reuse",
    "on_driver_loss",
    "driver_loss_grace_s",
    "queue_trials",
    "local_slots",
)
#: The same, which definitions of before these arguments were there lack.
_LATER: Final = ("code", "working_dir", "keep_working_dir", "metric_from", "on_odd_report")


def attached(
    name: str,
    *,
    broker: str | None,
    trainable: AnyTrainable | None,
    space: Mapping[str, Any] | Space | None,
    searcher: Searcher | None,
    scheduler: Scheduler | None,
    stop: object,
    max_trials: int | None,
) -> tuple[Plan, BrokerPlace]:
    """Return an experiment's plan as its definition has it, but for what is given, and the place where it runs.

    Raises:
        ConfigurationError: there is no such experiment, or a part of it stands in the user's code alone and was not given.
        BrokerUnavailable: there is no Redis, it refuses the password, or is too old.
    """
    refuse_on_import()
    place = BrokerPlace(broker or os.environ.get("MQTUNE_BROKER") or None)
    try:
        definition = _definition(name, place)
        place.store = definition.get("store", "")
        place.local_slots = definition.get("local_slots")
        place.queue_trials = definition.get("queue_trials", True)
        plan = _plan(
            name,
            definition,
            is_private=place.is_private,
            trainable=trainable,
            space=space,
            searcher=searcher,
            scheduler=scheduler,
            stop=stop,
            max_trials=max_trials,
        )
    except BaseException:
        place.let_go()
        raise
    return plan, place


def _definition(name: str, place: BrokerPlace) -> dict[str, Any]:
    """Return what an experiment is, as its server has it; or, if that has lost it, as this machine's copy began."""
    folder = mqtune_home() / name
    if not place.is_known and not (folder / SERVER_FOLDER).is_dir():
        if (folder / JOURNAL_FILE).is_file():
            raise ConfigurationError(
                f"experiment {name!r} did not run on this machine alone; give its broker: the URL of the Redis that has it"
            )
        raise ConfigurationError(
            f"there is no experiment {name!r} in {mqtune_home()}; {_listed([each.name for each in saved_experiments()])}. "
            "If it runs on a broker, give that"
        )
    found = place.definition(name, folder)
    if found is not None:
        return found
    raise ConfigurationError(f"there is no experiment {name!r} on {place.shown}; {_listed(place.experiments())}")


def _listed(names: list[str]) -> str:
    if not names:
        return "there is none at all"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names[:_SHOWN])}{more}"


def _plan(
    name: str,
    definition: Mapping[str, Any],
    *,
    is_private: bool,
    trainable: AnyTrainable | None,
    space: Mapping[str, Any] | Space | None,
    searcher: Searcher | None,
    scheduler: Scheduler | None,
    stop: object,
    max_trials: int | None,
) -> Plan:
    try:
        if space is None:
            space = _given("space", lambda: space_of(definition["space"]))
        whole = space if isinstance(space, Space) else Space(space)
        if searcher is None:
            searcher = _given("searcher", lambda: searcher_of(definition["searcher"], whole))
        if scheduler is None:
            scheduler = _given("scheduler", lambda: Scheduler.rebuild(definition["scheduler"]))
        if stop is None and definition["stop"] is not None:
            stop = _given("stop", lambda: StopRule.rebuild(definition["stop"]))
        return Plan(
            TrainableSpec.decode(definition["trainable"]) if trainable is None else trainable,
            whole,
            name=name,
            searcher=searcher,
            scheduler=scheduler,
            stop=stop,
            max_trials=max_trials if max_trials is not None else definition["max_trials"],
            points_to_evaluate=(),
            resources=Resources.decode(definition["resources"]),
            retention=Retention(**definition["retention"]),
            # Where code is taken from is never the choice of who may write to a server.
            code_root=Path(definition["code_root"]) if is_private else Path.cwd(),
            **{key: definition[key] for key in _SAME},
            **{key: definition[key] for key in _LATER if key in definition},
        )
    except KeyError as error:
        raise ConfigurationError(
            f"what mqtune {definition.get('version', '?')} kept of experiment {name!r} lacks {error}; run its script instead"
        ) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"what is kept of experiment {name!r} makes no sense ({error}); run its script instead"
        ) from None


def _given(argument: str, rebuild: Any) -> Any:
    """Return what can be made again.

    Raises:
        ConfigurationError: it can't; the message names the argument to give it by.
    """
    try:
        return rebuild()
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}: run the script again, or Tuner.attach(…, {argument}=…)") from None
