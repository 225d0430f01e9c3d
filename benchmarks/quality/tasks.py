"""The functions and tables that are searched: 27 epochs each, with their durations in virtual seconds."""

from __future__ import annotations

import itertools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

__all__ = ["EPOCHS", "EPOCH_S", "TASKS", "Task"]

EPOCHS: Final = 27
#: The mean time of an epoch, in virtual seconds.
EPOCH_S: Final = 1.0
#: By what share the epochs of one trial may be faster or slower than those of another one.
JITTER: Final = 0.2

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing to choose: a float or an integer between two bounds, or one of *choices*.

    Args:
        where: the parameter that it hangs on, which comes before it, and those of that's choices with which it counts; None if always.
    """

    low: float = 0.0
    high: float = 1.0
    choices: tuple[str, ...] = ()
    where: tuple[str, tuple[str, ...]] | None = None

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int)

    def hangs_on(self, name: str, choice: str) -> bool:
        """Whether it counts by that choice of that parameter."""
        return self.where is not None and self.where[0] == name and choice in self.where[1]

    def share(self, value: float) -> float:
        """Return where a number lies between the bounds, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)

    def at(self, share: float) -> float:
        """Return the number that lies there between the bounds."""
        return self.low + share * (self.high - self.low)


class Task(ABC):
    """Something to minimise.

    Args:
        name: of its figures.
        parameters: by name; what is searched on a logarithmic scale is given as its exponent.
    """

    def __init__(self, name: str, parameters: Mapping[str, Parameter]) -> None:
        self.name = name
        self.parameters = parameters

    def config(self, choose: Callable[[str, Parameter], Any]) -> dict[str, Any]:
        """Return a config of what is chosen for each parameter that counts with what was chosen before it."""
        config: dict[str, Any] = {}
        for name, each in self.parameters.items():
            if each.where is None or config.get(each.where[0]) in each.where[1]:
                config[name] = choose(name, each)
        return config

    @abstractmethod
    def loss(self, config: Config, epoch: int) -> float:
        """Return the loss after *epoch* epochs, without noise."""

    @property
    @abstractmethod
    def best(self) -> float:
        """The least loss after the last epoch that any config has."""

    def noise(self) -> float:
        """Return the standard deviation of what is added to each loss that is reported."""
        return 0.0

    def slowness(self, config: Config) -> float:
        """Return how long the config's epochs take, in mean epochs."""
        return 1.0

    def curve(self, config: Config, seed: int) -> Iterator[tuple[float, float]]:
        """Yield an epoch's duration in virtual seconds and the loss that is reported, the same for the same config and seed."""
        rng = random.Random(f"{seed} {[config[name] for name in self.parameters if name in config]}")
        epoch_s = EPOCH_S * self.slowness(config) * rng.uniform(1 - JITTER, 1 + JITTER)
        for epoch in range(1, EPOCHS + 1):
            yield epoch_s, self.loss(config, epoch) + rng.gauss(0.0, 1.0) * self.noise()

    def regret(self, config: Config) -> float:
        """Return by how much a config is worse than the best, after the last epoch and without noise."""
        return max(0.0, self.loss(config, EPOCHS) - self.best)


class Branin(Task):
    """The function of Branin as one that gets exact with the epochs.

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
    """The function of Hartmann in six dimensions as one that gets exact with the epochs, after the same paper.

    Args:
        name: of its figures.
        noise: the standard deviation of a report's noise.
    """

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

    def __init__(self, name: str = "hartmann6", *, noise: float = 0.0) -> None:
        super().__init__(name, {f"x{number}": Parameter() for number in range(1, 7)})
        self._noise = noise

    def noise(self) -> float:
        return self._noise

    def loss(self, config: Config, epoch: int) -> float:
        missing, x = 1 - epoch / EPOCHS, [config[name] for name in self.parameters]
        return -sum(
            (weight - 0.1 * missing)
            * math.exp(-sum(a * (at - place) ** 2 for a, at, place in zip(steep, x, places, strict=True)))
            for weight, steep, places in zip(self._weights, self._steepness, self._places, strict=True)
        )


class Table(Task):
    """A table of learning curves over a grid; a config has the curve of the grid's point that is next to it.

    Args:
        name: of its figures.
        parameters: by name.
        sizes: the number of the grid's places for each of *parameters* that is a float.
    """

    def __init__(self, name: str, parameters: Mapping[str, Parameter], sizes: Mapping[str, int]) -> None:
        super().__init__(name, parameters)
        self.sizes = {key: sizes.get(key) or _size(parameter) for key, parameter in parameters.items()}

    @abstractmethod
    def at(self, cell: tuple[int, ...], epoch: int) -> float:
        """Return the loss of a point of the grid after *epoch* epochs."""

    def loss(self, config: Config, epoch: int) -> float:
        return self.at(self.cell(config), epoch)

    def cell(self, config: Config) -> tuple[int, ...]:
        """Return the places of the point that is next to a config, one for each parameter."""
        return tuple(_place(config[key], each, self.sizes[key]) for key, each in self.parameters.items())

    @cached_property
    def best(self) -> float:
        """The least loss of the table after the last epoch."""
        return min(self.at(cell, EPOCHS) for cell in itertools.product(*map(range, self.sizes.values())))


def _size(parameter: Parameter) -> int:
    return len(parameter.choices) or int(parameter.high - parameter.low) + 1


def _place(value: Any, parameter: Parameter, size: int) -> int:
    if parameter.choices:
        return parameter.choices.index(value)
    return round(parameter.share(value) * (size - 1))


class Curves(Table):
    """Learning curves that are drawn, as a tuner meets them.

    Their floor is a bowl, with interactions, around a config that is drawn too, an offset and another middle for each optimizer, and something
    of each point's own. The way down is a power of the epoch; its speed depends on the learning rate.

    Args:
        name: of its figures.
        seed: of all that is drawn.
        is_crossing: whether those whose floor is lowest come down slowest, so that the first epochs mislead.
        noise: the standard deviation of a report's noise; the floors lie within about 1 of each other.
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
        super().__init__(name, parameters, {"log10_lr": 11, "log10_decay": 5, "dropout": 3})
        self._seed = seed
        self._is_crossing = is_crossing
        self._noise = noise
        rng = random.Random(seed)
        numbers = len(parameters) - 1
        self._middles = [[rng.uniform(0.15, 0.85) for _ in range(numbers)] for _ in parameters["optimizer"].choices]
        self._offsets = [rng.uniform(0.0, 0.1) for _ in self._middles]
        self._weights = [2.0, *(rng.uniform(0.2, 0.6) for _ in range(numbers - 1))]
        self._twists = [rng.uniform(-0.5, 0.5) for _ in range(numbers - 1)]
        self._known: dict[tuple[int, ...], tuple[float, float]] = {}

    def noise(self) -> float:
        return self._noise

    def slowness(self, config: Config) -> float:
        """Return more for wide networks: from a half to one and a half."""
        return 0.5 + self.parameters["log2_width"].share(config["log2_width"])

    def at(self, cell: tuple[int, ...], epoch: int) -> float:
        floor, speed = self._known.get(cell) or self._known.setdefault(cell, self._drawn(cell))
        return floor + (self.START - floor) * float(epoch) ** -speed

    def _drawn(self, cell: tuple[int, ...]) -> tuple[float, float]:
        """Return the floor of a point's curve, and the exponent by which it comes down."""
        *places, optimizer = cell
        x = [place / (size - 1) for place, size in zip(places, self.sizes.values(), strict=False)]
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
        for place, size in zip(cell, self.sizes.values(), strict=True):
            number = number * size + place
        return number


class Digits(Table):
    """Networks on scikit-learn's digits, trained once by ``digits.py``: log loss on 600 images that were held out."""

    def __init__(self) -> None:
        super().__init__("digits", DIGITS, DIGITS_SIZES)

    @cached_property
    def _curves(self) -> Mapping[tuple[int, ...], Sequence[float]]:
        lines = DIGITS_FILE.read_text().splitlines()
        cells = itertools.product(*map(range, self.sizes.values()))
        return {cell: [int(each) / 1000 for each in line.split()] for cell, line in zip(cells, lines, strict=True)}

    def at(self, cell: tuple[int, ...], epoch: int) -> float:
        return self._curves[cell][epoch - 1]

    def slowness(self, config: Config) -> float:
        """Return what the training took, roughly: more for wide networks and small batches."""
        return float((0.5 + 0.15 * (config["log2_width"] - 3)) * (1.5 if config["batch"] == "16" else 0.75))


class Models(Task):
    """A choice of three models with parameters of their own, of which the one that ends best comes down slowest.

    Each has a bowl around a middle that is drawn, and comes down to it exponentially.
    """

    #: The least loss of each model, and the share of the way there that an epoch takes, as an exponent.
    CURVES: Final = {"svm": (0.15, 0.5), "trees": (0.1, 0.4), "net": (0.0, 0.3)}
    START: Final = 1.0
    NOISE: Final = 0.005

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
        #: The middle of each parameter, as a share of its range, and how steep the bowl is there.
        self._bowl = {name: (rng.uniform(0.15, 0.85), rng.uniform(0.3, 2.0)) for name in [*parameters][1:]}

    def noise(self) -> float:
        return self.NOISE

    def loss(self, config: Config, epoch: int) -> float:
        least, speed = self.CURVES[config["model"]]
        for name, (middle, steep) in self._bowl.items():
            if name in config:
                least += steep * (self.parameters[name].share(config[name]) - middle) ** 2
        return least + (self.START - least) * math.exp(-speed * epoch)

    @property
    def best(self) -> float:
        """The loss at the bottom of the lowest bowl; a whole parameter may miss its middle by a little."""
        return min(least + (self.START - least) * math.exp(-speed * EPOCHS) for least, speed in self.CURVES.values())


DIGITS_FILE: Final = Path(__file__).with_name("digits.txt")
DIGITS: Final = {
    "log10_lr": Parameter(-4.0, -0.5),
    "log10_alpha": Parameter(-5.0, 1.0),
    "log2_width": Parameter(3, 7),
    "batch": Parameter(choices=("16", "64")),
}
DIGITS_SIZES: Final = {"log10_lr": 8, "log10_alpha": 4}

TASKS: Final[tuple[Task, ...]] = (
    Branin(),
    Hartmann6(),
    Curves("curves", 1),
    Curves("crossing", 2, is_crossing=True),
    Curves("noisy", 3, noise=0.05),
    Digits(),
    Models(),
)
