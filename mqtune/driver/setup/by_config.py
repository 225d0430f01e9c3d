"""Resources by config: a user's function returns the resources for each config."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from mqtune.core.errors import ConfigurationError, InsufficientResources
from mqtune.core.resources import BY_CONFIG, Resources
from mqtune.core.text import counted
from mqtune.core.trial import Config
from mqtune.search.space import AnySpace, Space
from mqtune.search.values import copy_value

#: Type of ``Tuner(resources=…)``.
AnyResources = Resources | Callable[[Config], Resources]

#: Number of sampled configs. Resources that one config in 50 needs are missed with a probability of 2 %.
_SAMPLES: Final = 200


class ResourcesByConfig:
    """Wraps a user's function that returns the resources for a config.

    The constructor calls the function on sampled configs, to find mistakes before the first trial.

    Args:
        function: the user's function. It gets a copy of the config.
        space: the space from which configs are sampled.

    Raises:
        ConfigurationError: the function fails, or returns no resources or differing numbers of slots, or the experiment
            has no space.
    """

    def __init__(self, function: Callable[[Config], Resources], space: Space) -> None:
        self._function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))
        if isinstance(space, AnySpace):
            raise ConfigurationError(
                f"resources={self.name}: without a space there is no config to call the function with; give a space, "
                f"or mqtune.Resources(gpus=…, cpus=…)"
            )
        #: Number of slots of each trial. A service that limits slots counts in multiples of it.
        self._slots = 0
        rng = random.Random(0)
        #: Distinct resources of the samples, smallest first.
        self.expected: Sequence[Resources] = sorted({self(space.sample(rng)) for _ in range(_SAMPLES)}, key=_size)

    def __call__(self, config: Config) -> Resources:
        """Return the resources of a trial with this config.

        Raises:
            ConfigurationError: the function fails, or returns no resources or another number of slots than before.
        """
        try:
            resources: object = self._function(copy_value(config))
        except Exception as error:
            raise ConfigurationError(
                f"resources: {self.name} raised {type(error).__name__}: {error}, for {config!r}"
            ) from error
        if not isinstance(resources, Resources):
            raise ConfigurationError(
                f"resources: {self.name} returned {resources!r} for {config!r}; return mqtune.Resources(gpus=…, cpus=…)"
            )
        self._slots = self._slots or resources.slots
        if resources.slots != self._slots:
            raise ConfigurationError(
                f"resources: {self.name} asks for {counted(resources.slots, 'seat')} for {config!r}, and for "
                f"{self._slots} before; all trials of an experiment have the same number: return mqtune.Resources "
                "with the same machines=… or seats=…"
            )
        return resources

    def describe(self) -> dict[str, str]:
        """Return the form of this in a definition: the function's name."""
        return {BY_CONFIG: self.name}

    def most_needed(self) -> Resources:
        """Return the smallest resources that fit all samples, for a machine whose slots are equal.

        Raises:
            InsufficientResources: the samples need different numbers of GPUs.
        """
        first, *others = self.expected
        if different := [other for other in others if (other.gpus, other.has_gpu) != (first.gpus, first.has_gpu)]:
            raise InsufficientResources(
                f"resources: {self.name} returns {first} for some configs and {different[0]} for others, but the slots "
                "of a run on one machine all have the same number of GPUs; give a broker, with workers for each"
            )
        return Resources(
            gpus=first.gpus,
            cpus=max(sample.cpus for sample in self.expected),
            gpu_memory_gb=max(sample.gpu_memory_gb for sample in self.expected),
            tags=frozenset().union(*(sample.tags for sample in self.expected)),
            machines=max(sample.machines for sample in self.expected),
            seats=first.seats,
        )


def _size(resources: Resources) -> tuple[float, int, float, list[str], int]:
    return resources.gpus, resources.cpus, resources.gpu_memory_gb, sorted(resources.tags), resources.machines
