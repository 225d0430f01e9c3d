"""Resources by config: a user's function says what each trial asks for."""

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

#: What ``Tuner(resources=…)`` takes.
AnyResources = Resources | Callable[[Config], Resources]

#: So many configs are sampled to learn what trials may ask for: what one in fifty asks for is hardly missed, and they
#: take some hundredths of a second.
_SAMPLES: Final = 200


class ResourcesByConfig:
    """A user's function by which trials ask for resources, tried on samples of the space.

    The function is called with samples of the space here, so that a mistake shows before the first trial, and then once
    for each config that is staged: what it came to is journaled.

    Args:
        function: takes a copy of a config.
        space: the space.

    Raises:
        ConfigurationError: the function fails, or returns something else, or other numbers of seats; or there is no
            space.
    """

    def __init__(self, function: Callable[[Config], Resources], space: Space) -> None:
        self._function = function
        self.name = str(getattr(function, "__name__", type(function).__name__))
        if isinstance(space, AnySpace):
            raise ConfigurationError(
                f"resources={self.name}: without a space nothing is known of the configs; give "
                f"mqtune.Resources(gpus=…, cpus=…)"
            )
        #: How many seats all trials have: shares of a fleet are reckoned in multiples of that.
        self._seats = 0
        rng = random.Random(0)
        #: What samples of the space ask for, each once, the least first.
        self.expected: Sequence[Resources] = sorted({self(space.sample(rng)) for _ in range(_SAMPLES)}, key=_size)

    def __call__(self, config: Config) -> Resources:
        """Return what a trial with a config asks for.

        Raises:
            ConfigurationError: the function fails, or returns something else, or another number of seats than before.
        """
        try:
            found: object = self._function(copy_value(config))
        except Exception as error:
            raise ConfigurationError(
                f"resources: {self.name} raised {type(error).__name__}: {error}, for {config!r}"
            ) from error
        if not isinstance(found, Resources):
            raise ConfigurationError(
                f"resources: {self.name} returned {found!r} for {config!r}; return mqtune.Resources(gpus=…, cpus=…)"
            )
        self._seats = self._seats or found.seats
        if found.seats != self._seats:
            raise ConfigurationError(
                f"resources: {self.name} asks for {counted(found.seats, 'seat')} for {config!r}, and for {self._seats} "
                f"before; all trials of an "
                "experiment have the same number: return mqtune.Resources with the same machines=… or seats=…"
            )
        return found

    def describe(self) -> dict[str, str]:
        """Return its name, which a definition has in place of resources."""
        return {BY_CONFIG: self.name}

    @property
    def most(self) -> Resources:
        """Resources that suit all samples: slots of one kind, as one machine has them.

        Raises:
            InsufficientResources: they ask for different numbers of GPUs.
        """
        first, *others = self.expected
        if different := [each for each in others if (each.gpus, each.has_gpu) != (first.gpus, first.has_gpu)]:
            raise InsufficientResources(
                f"resources: by {self.name} trials ask for {first}, and for {different[0]}, and the slots of this "
                f"machine alone all have the "
                "same number of GPUs; give a broker, with workers for each"
            )
        return Resources(
            gpus=first.gpus,
            cpus=max(each.cpus for each in self.expected),
            gpu_memory_gb=max(each.gpu_memory_gb for each in self.expected),
            tags=frozenset().union(*(each.tags for each in self.expected)),
            machines=max(each.machines for each in self.expected),
            seats=first.seats,
        )


def _size(resources: Resources) -> tuple[float, int, float, list[str], int]:
    return resources.gpus, resources.cpus, resources.gpu_memory_gb, sorted(resources.tags), resources.machines
