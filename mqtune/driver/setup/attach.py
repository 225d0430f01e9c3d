"""Rebuilds a tuner's arguments from an experiment's definition, without its script."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mqtune.checkpoints import store_beside
from mqtune.core.codec import Body
from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import ARCHIVED, SERVER_FOLDER, mqtune_home
from mqtune.core.objective import metric_of
from mqtune.core.resources import BY_CONFIG, Resources
from mqtune.core.text import there_are
from mqtune.driver.setup.by_config import AnyResources
from mqtune.driver.setup.connect import BrokerDeployment
from mqtune.driver.setup.options import (
    JOURNAL_MB,
    LEARN_FROM,
    Checkpoints,
    Definition,
    Failures,
    Process,
    RunOptions,
    rebuilt,
)
from mqtune.driver.setup.settings import KnownTrainable
from mqtune.journal.files.copy import JOURNAL_FILE
from mqtune.results.experiments import saved_experiments
from mqtune.results.warm_start import WarmStart
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.stopping.rule import StopRule
from mqtune.search.base import Searcher
from mqtune.search.points import searcher_of
from mqtune.search.space import Space, space_of
from mqtune.trainable.spec import AnyTrainable, TrainableSpec, refuse_on_import

T = TypeVar("T")


def attached(
    name: str,
    *,
    backend: str | None,
    trainable: AnyTrainable | None,
    space: Mapping[str, object] | Space | None,
    searcher: Searcher | WarmStart | str | None,
    scheduler: Scheduler | None,
    stop: object,
    resources: AnyResources | None,
    max_trials: int | None,
    run: RunOptions,
) -> dict[str, Any]:
    """Return the arguments of a tuner that continues an experiment.

    They are the given ones, and otherwise those of the experiment's definition. The returned backend is connected; the
    caller closes it.

    Raises:
        ConfigurationError: the experiment does not exist, or an argument is needed because its value, such as a
            function, exists only in the user's code.
        BrokerUnavailable: Redis can't be reached, is too old, or refuses the password.
    """
    refuse_on_import()
    if run.overwrite:
        raise ConfigurationError("attach continues an experiment: overwrite=True is for the script that begins one")
    deployment = BrokerDeployment(backend or os.environ.get("MQTUNE_BROKER") or None, timing=run.timing)
    try:
        definition = _definition(name, deployment)
        deployment.store = store_beside(definition.get("store", ""), mqtune_home() / name)
        deployment.local_slots = definition.get("local_slots")
        with _explained(name, definition):
            whole = _space(space, definition)
            rule = stop if stop is not None else _rule(definition)
            kept = rebuilt(RunOptions, definition)
            decides = scheduler or _given("scheduler", lambda: Scheduler.rebuild(definition["scheduler"]))
            if searcher is None and decides.searcher is None:
                searcher = _given("searcher", lambda: searcher_of(definition["searcher"], whole))
            if (names := definition.get(LEARN_FROM)) and searcher is not None and not isinstance(searcher, WarmStart):
                # The definition has the other experiments' trials too, so they are not read again.
                searcher = WarmStart(names, searcher)
            return {
                "trainable": _trainable(trainable, definition, deployment),
                "space": whole,
                "metric": metric_of(definition),
                "mode": definition["mode"],
                "max_trials": max_trials if max_trials is not None else definition["max_trials"],
                "searcher": searcher,
                "scheduler": decides,
                "stop": rule,
                "resources": resources
                if resources is not None
                else _given("resources", lambda: _resources(definition["resources"])),
                "backend": deployment,
                "name": name,
                "seed": definition["seed"],
                "failures": rebuilt(Failures, definition),
                "checkpoints": rebuilt(Checkpoints, definition),
                "process": rebuilt(Process, definition),
                "run": replace(
                    run,
                    max_concurrent=kept.max_concurrent if run.max_concurrent is None else run.max_concurrent,
                    journal_mb=kept.journal_mb if run.journal_mb == JOURNAL_MB else run.journal_mb,
                    queue_trials=kept.queue_trials and run.queue_trials,
                ),
            }
    except BaseException:
        deployment.close()
        raise


def _trainable(
    given: AnyTrainable | None, definition: Definition, deployment: BrokerDeployment
) -> AnyTrainable | KnownTrainable:
    # With a bundle, workers have the code already, and a given trainable is not used.
    if given is not None and not definition.get("bundle"):
        return given
    # On a shared server others can write the definition. They must not choose the folder that code is read from.
    code_root = Path(definition["code_root"]) if deployment.is_private else Path.cwd()
    return KnownTrainable(TrainableSpec.decode(definition["trainable"]), code_root)


def _space(given: Mapping[str, object] | Space | None, definition: Definition) -> Space:
    if given is None:
        return _given("space", lambda: space_of(definition["space"]))
    return given if isinstance(given, Space) else Space(given)


def _resources(described: Body) -> Resources:
    if BY_CONFIG in described:
        raise ConfigurationError(
            f"the resources of trials come from the function {described[BY_CONFIG]}, which exists in your code alone"
        )
    return Resources.decode(described)


def _rule(definition: Definition) -> StopRule | None:
    described = definition["stop"]
    return None if described is None else _given("stop", lambda: StopRule.rebuild(described))


def _definition(name: str, place: BrokerDeployment) -> Definition:
    """Return an experiment's definition, from its server or from the local copy of its journal."""
    folder = mqtune_home() / name
    if not place.is_known and not (folder / SERVER_FOLDER).is_dir():
        if (folder / ARCHIVED).is_file():
            raise ConfigurationError(
                f"experiment {name!r} is archived in {folder}; to continue it, give a broker: `mqtune drive {name} "
                f"--broker URL`"
            )
        if (folder / JOURNAL_FILE).is_file():
            raise ConfigurationError(
                f"experiment {name!r} did not run on this machine alone; give its broker: the URL of the Redis that "
                f"has the experiment"
            )
        raise ConfigurationError(
            f"there is no experiment {name!r} in {mqtune_home()}; "
            f"{there_are([saved.name for saved in saved_experiments()])}. "
            "If it ran on a broker, give the broker's URL"
        )
    definition = place.definition(name, folder)
    if definition is not None:
        return definition
    raise ConfigurationError(f"there is no experiment {name!r} on {place.shown}; {there_are(place.experiments())}")


@contextlib.contextmanager
def _explained(name: str, definition: Definition) -> Iterator[None]:
    """Turn errors of an incomplete or malformed definition into a ConfigurationError."""
    try:
        yield
    except ConfigurationError:
        raise
    except KeyError as error:
        raise ConfigurationError(
            f"the definition that mqtune {definition.get('version', '?')} wrote of experiment {name!r} lacks {error}; "
            f"run its script instead"
        ) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"the definition of experiment {name!r} is invalid ({error}); run its script instead"
        ) from None


def _given(argument: str, rebuild: Callable[[], T]) -> T:
    """Return the result of *rebuild*, the value of an argument that was left out.

    Raises:
        ConfigurationError: it can't be rebuilt from the definition. The message names the argument to give.
    """
    try:
        return rebuild()
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}: run the script again, or Tuner.attach(…, {argument}=…)") from None
