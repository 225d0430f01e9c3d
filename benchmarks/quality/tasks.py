"""Functions and tables to search: 27 epochs each, with durations in virtual seconds."""

from __future__ import annotations

import itertools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

__all__ = ["EPOCHS", "EPOCH_S", "TASKS", "Task"]

EPOCHS: Final = 27
#: The mean time of an epoch, in virtual seconds.
EPOCH_S: Final = 1.0
#: Greatest deviation of a trial's epochs from the mean time, as a share of it.
JITTER: Final = 0.2

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: a float or an integer between two bounds, or one of *choices*.

    Args:
        where: an earlier parameter, and its choices for which this one is active. Without it this one is always active.
    """

    low: float = 0.0
    high: float = 1.0
    choices: tuple[str, ...] = ()
    where: tuple[str, tuple[str, ...]] | None = None

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int)

    def hangs_on(self, name: str, choice: str) -> bool:
        """Return whether it is active by that choice of that parameter."""
        return self.where is not None and self.where[0] == name and choice in self.where[1]

    def share(self, value: float) -> float:
        """Return a number's place between the bounds, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)


class Task(ABC):
    """Something to minimise.

    Args:
        name: of its figures.
        parameters: by name. Logarithmic ones are given as exponents.
    """

    #: Standard deviation of the noise in each reported loss.
    noise = 0.0

    def __init__(self, name: str, parameters: Mapping[str, Parameter]) -> None:
        self.name = name
        self.parameters = parameters

    def config(self, choose: Callable[[str, Parameter], Any]) -> dict[str, Any]:
        """Return a config with a choice for each parameter that earlier choices make active."""
        config: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if parameter.where is None or config.get(parameter.where[0]) in parameter.where[1]:
                config[name] = choose(name, parameter)
        return config

    @abstractmethod
    def loss(self, config: Config, epoch: int) -> float:
        """Return the loss after *epoch* epochs, without noise."""

    @property
    @abstractmethod
    def best(self) -> float:
        """The least loss of any config after the last epoch."""

    def slowness(self, config: Config) -> float:
        """Return the duration of the config's epochs, in mean epochs."""
        return 1.0

    def curve(self, config: Config, seed: int) -> Iterator[tuple[float, float]]:
        """Yield each epoch's duration in virtual seconds and its reported loss.

        The curve depends on nothing but the config and the seed.
        """
        rng = random.Random(f"{seed} {[config[name] for name in self.parameters if name in config]}")
        epoch_s = EPOCH_S * self.slowness(config) * rng.uniform(1 - JITTER, 1 + JITTER)
        for epoch in range(1, EPOCHS + 1):
            yield epoch_s, self.loss(config, epoch) + rng.gauss(0.0, 1.0) * self.noise

    def regret(self, config: Config) -> float:
        """Return the config's loss above the best, after the last epoch and without noise."""
        return max(0.0, self.loss(config, EPOCHS) - self.best)


class Branin(Task):
    """The function of Branin, approximated better with each epoch.

    After Kandasamy et al., "Multi-fidelity Bayesian optimisation with continuous approximations", ICML 2017, section 5.
    """

    best = 0.397887

    def __init__(self) -> None:
        super().__init__("branin", {"x1": Parameter(-5.0, 10.0), "x2": Parameter(0.0, 15.0)})

    def loss(self, config: Config, epoch: int) -> float:
        x1, x2, missing = config["x1"], config["x2"], 1 - epoch / EPOCHS
        b = 5.1 / (4 * math.pi**2) - 0.01 * missing
        c = 5 / math.pi - 0.1 * missing
        t = 1 / (8 * math.pi) + 0.05 * missing
        value = (x2 - b * x1**2 + c * x1 - 6) ** 2 + 10 * (1 - t) * math.cos(x1) + 10
        return float(value)


class Hartmann6(Task):
    """The function of Hartmann in six dimensions, approximated likewise after the same paper."""

    best = -3.32237
    _weights: Final = (1.0, 1.2, 3.0, 3.2)
    _steepness: Final = (
        (10, 3, 17, 3.5, 1.7, 8),
        (0.05, 10, 17, 0.1, 8, 14),
        (3, 3.5, 1.7, 10, 17, 8),
        (17, 8, 0.05, 10, 0.1, 14),
    )
    _places: Final = (
        (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
        (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
        (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
        (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
    )

    def __init__(self) -> None:
        super().__init__("hartmann6", {f"x{number}": Parameter() for number in range(1, 7)})

    def loss(self, config: Config, epoch: int) -> float:
        missing, x = 1 - epoch / EPOCHS, [config[name] for name in self.parameters]
        return -sum(
            (weight - 0.1 * missing)
            * math.exp(-sum(a * (at - place) ** 2 for a, at, place in zip(steep, x, places, strict=True)))
            for weight, steep, places in zip(self._weights, self._steepness, self._places, strict=True)
        )


class Curves(Task):
    """A table of random learning curves over a grid of configs.

    A config has the curve of the nearest grid point. The curves' floors form a bowl, with interactions, around a random
    config. Each optimizer has an offset and a middle of its own, and each point adds a little. A curve falls by a power
    of the epoch. Its speed depends on the learning rate.

    Args:
        name: of its figures.
        seed: of everything random.
        is_crossing: whether curves with the lowest floors fall slowest, so that the first epochs mislead.
        noise: the standard deviation of a report's noise. The floors lie within about 1 of each other.
    """

    START: Final = 2.3

    def __init__(self, name: str, seed: int, *, is_crossing: bool = False, noise: float = 0.005) -> None:
        parameters = {
            "log10_lr": Parameter(-5.0, -1.0),
            "log10_decay": Parameter(-6.0, -2.0),
            "dropout": Parameter(0.0, 0.6),
            "log2_width": Parameter(4, 8),
            "layers": Parameter(1, 3),
            "optimizer": Parameter(choices=("sgd", "adam", "lamb")),
        }
        super().__init__(name, parameters)
        #: The number of grid places for each parameter.
        self._sizes = (11, 5, 3, 5, 3, 3)
        self._seed = seed
        self._is_crossing = is_crossing
        self.noise = noise
        rng = random.Random(seed)
        numbers = len(parameters) - 1
        self._middles = [[rng.uniform(0.15, 0.85) for _ in range(numbers)] for _ in parameters["optimizer"].choices]
        self._offsets = [rng.uniform(0.0, 0.1) for _ in self._middles]
        self._weights = [2.0, *(rng.uniform(0.2, 0.6) for _ in range(numbers - 1))]
        self._twists = [rng.uniform(-0.5, 0.5) for _ in range(numbers - 1)]
        self._known: dict[tuple[int, ...], tuple[float, float]] = {}

    def slowness(self, config: Config) -> float:
        """Return more for wide networks: from a half to one and a half."""
        return 0.5 + self.parameters["log2_width"].share(config["log2_width"])

    def loss(self, config: Config, epoch: int) -> float:
        places = zip(self.parameters.items(), self._sizes, strict=True)
        return self._at(tuple(_place(config[name], parameter, size) for (name, parameter), size in places), epoch)

    @cached_property
    def best(self) -> float:
        return min(self._at(cell, EPOCHS) for cell in itertools.product(*map(range, self._sizes)))

    def _at(self, cell: tuple[int, ...], epoch: int) -> float:
        """Return the loss of a grid point."""
        floor, speed = self._known.get(cell) or self._known.setdefault(cell, self._curve(cell))
        return floor + (self.START - floor) * float(epoch) ** -speed

    def _curve(self, cell: tuple[int, ...]) -> tuple[float, float]:
        """Return the floor of a grid point's curve, and the exponent of its speed."""
        *places, optimizer = cell
        x = [place / (size - 1) for place, size in zip(places, self._sizes, strict=False)]
        off = [at - middle for at, middle in zip(x, self._middles[optimizer], strict=True)]
        bowl = sum(weight * d * d for weight, d in zip(self._weights, off, strict=True))
        twist = sum(weight * a * b for weight, (a, b) in zip(self._twists, itertools.pairwise(off), strict=True))
        own = random.Random(self._seed + 1_000 * self._number(cell)).gauss(0.0, 0.01)
        floor = 0.1 + max(0.0, bowl + twist) + self._offsets[optimizer] + abs(own)
        if self._is_crossing:
            return floor, 0.5 + 1.2 * x[0] + 0.6 * min(1.0, bowl)
        return floor, 1.0 + 0.3 * x[0]

    def _number(self, cell: tuple[int, ...]) -> int:
        """Return the place of a point in the order of the grid."""
        number = 0
        for place, size in zip(cell, self._sizes, strict=True):
            number = number * size + place
        return number


def _place(value: Any, parameter: Parameter, size: int) -> int:
    if parameter.choices:
        return parameter.choices.index(value)
    return round(parameter.share(value) * (size - 1))


class Models(Task):
    """A choice of three models with parameters of their own.

    Each model has a bowl around a random middle, and its loss falls to it exponentially. The model with the least final
    loss falls slowest.
    """

    #: The least loss of each model, and the exponent of its fall in an epoch.
    CURVES: Final = {"svm": (0.15, 0.5), "trees": (0.1, 0.4), "net": (0.0, 0.3)}
    START: Final = 1.0
    noise = 0.005

    def __init__(self) -> None:
        svm, trees, net = (("model", (name,)) for name in self.CURVES)
        parameters = {
            "model": Parameter(choices=tuple(self.CURVES)),
            "log10_C": Parameter(-3.0, 3.0, where=svm),
            "log10_gamma": Parameter(-5.0, 1.0, where=svm),
            "depth": Parameter(2, 20, where=trees),
            "share": Parameter(0.1, 1.0, where=trees),
            "log10_lr": Parameter(-5.0, -1.0, where=net),
            "width": Parameter(16, 512, where=net),
            "dropout": Parameter(0.0, 0.6, where=net),
        }
        super().__init__("conditional", parameters)
        rng = random.Random(5)
        #: The middle of each parameter, as a share of its range, and the steepness of the bowl there.
        self._bowl = {name: (rng.uniform(0.15, 0.85), rng.uniform(0.3, 2.0)) for name in [*parameters][1:]}

    def loss(self, config: Config, epoch: int) -> float:
        least, speed = self.CURVES[config["model"]]
        for name, (middle, steep) in self._bowl.items():
            if name in config:
                least += steep * (self.parameters[name].share(config[name]) - middle) ** 2
        return least + (self.START - least) * math.exp(-speed * epoch)

    @property
    def best(self) -> float:
        """The loss at the bottom of the lowest bowl. Integers may miss their middle by a little."""
        return min(least + (self.START - least) * math.exp(-speed * EPOCHS) for least, speed in self.CURVES.values())


TASKS: Final[tuple[Task, ...]] = (
    Branin(),
    Hartmann6(),
    Curves("curves", 1),
    Curves("crossing", 2, is_crossing=True),
    Curves("noisy", 3, noise=0.05),
    Models(),
)
