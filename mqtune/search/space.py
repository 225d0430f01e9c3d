"""A search space: domains and constants under the names that a config gives them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from mqtune.core.errors import SpaceError
from mqtune.core.trial import Config
from mqtune.search.domains import MAX_DEPTH, Constant, Derived, Domain, Grid, copy_value, domain_of, plain_value

if TYPE_CHECKING:
    from numpy.random import Generator

#: What stands for all paths in the description of a space that takes every config; no other space has an empty path.
_ANYTHING: Final = ""
#: Joins the keys of nested dicts to a path such as ``optimizer/lr``.
SEPARATOR: Final = "/"

#: How many configs are drawn at once, at first and at most: the first ones mustn't wait, and more gain nothing.
_FIRST_BLOCK: Final = 4
_LARGEST_BLOCK: Final = 256

#: A definition's shape: a dict for each dict, and a path for each entry.
_Tree = dict[str, "str | _Tree"]


class Space:
    """The configs that an experiment may try; immutable.

    Args:
        definition: a dict of domains, constants and further dicts. The order of its keys is the order in which values
            are drawn and in which a grid is walked, the last key fastest.

    Raises:
        SpaceError: a key is not a string or holds a ``/``, a value can't be sent to a worker, or a ``sample_from``
            function fails. Each of these is called once here, so that a mistake shows before the first trial.
    """

    def __init__(self, definition: Mapping[str, object]) -> None:
        if not isinstance(definition, Mapping):
            raise SpaceError(f"the search space {definition!r} is not a dict of names and domains")
        self._entries: dict[str, Domain] = {}
        self._tree = self._plant(definition, "")
        self._grid = {path: entry for path, entry in self._entries.items() if isinstance(entry, Grid)}
        self._functions = {path: entry.function for path, entry in self._entries.items() if isinstance(entry, Derived)}
        if self._functions:
            self.sample(random.Random(0))

    def _plant(self, definition: Mapping[str, object], prefix: str) -> _Tree:
        if prefix.count(SEPARATOR) > MAX_DEPTH:
            raise SpaceError(f"a search space has more than {MAX_DEPTH} levels of dicts; does one hold itself?")
        tree: _Tree = {}
        for key, value in definition.items():
            if not isinstance(key, str) or not key or SEPARATOR in key:
                place = f" under {prefix.rstrip(SEPARATOR)!r}" if prefix else ""
                raise SpaceError(f"the key {key!r}{place} is not a name; give a string that is not empty, without '/'")
            path = prefix + key
            if isinstance(value, Mapping) and value:
                tree[key] = self._plant(value, path + SEPARATOR)
            else:
                tree[key] = path
                self._entries[path] = value if isinstance(value, Domain) else _constant(value, path)
        return tree

    @property
    def domains(self) -> dict[str, Domain]:
        """What there is to choose from, by path: all entries but constants and functions."""
        return {path: entry for path, entry in self._entries.items() if not isinstance(entry, Constant | Derived)}

    @property
    def grid_size(self) -> int:
        """The number of points of the grid: 1 without ``grid_search``."""
        return math.prod(len(entry.options) for entry in self._grid.values())

    @property
    def has_grid(self) -> bool:
        """Tells whether there is a ``grid_search`` entry."""
        return bool(self._grid)

    @property
    def size(self) -> int | None:
        """The number of different configs, or None when they can't be counted."""
        sizes = [entry.size for entry in self._entries.values()]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    def grid_points(self) -> Iterator[dict[str, object]]:
        """Yield each point of the grid as values by path, in the order of nested loops; ``{}`` without a grid."""
        for values in itertools.product(*(entry.options for entry in self._grid.values())):
            yield dict(zip(self._grid, map(copy_value, values), strict=True))

    def sample(self, rng: random.Random, grid_point: Mapping[str, object] | None = None) -> Config:
        """Return a new config, with the values of *grid_point* if given; the same state of *rng* gives the same one.

        Raises:
            SpaceError: a ``sample_from`` function fails.
        """
        return self._build(grid_point or {}, lambda entry: entry.sample(rng))

    def grid_point(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return the values, by path, that *config* has of the grid.

        Raises:
            SpaceError: it is not in the space.
        """
        return {path: value for path, value in self._match(config).items() if path in self._grid}

    def draws(self, rng: Generator) -> Iterator[dict[str, object]]:
        """Yield, without end, values by path for what neither a grid nor a function gives; :meth:`config` makes a config of them.

        They are drawn in blocks, which grow: NumPy takes as long for one number as for dozens. The same state of *rng*, and
        the same use of it in between, give the same values.
        """
        drawn = [
            (p, entry.at) for p, entry in self._entries.items() if p not in self._grid and p not in self._functions
        ]
        size = _FIRST_BLOCK
        while True:
            for shares in rng.random((size, len(drawn))).tolist():
                yield {path: at(share) for (path, at), share in zip(drawn, shares, strict=True)}
            size = min(2 * size, _LARGEST_BLOCK)

    def config(self, values: dict[str, object]) -> Config:
        """Return the config of these values by path, which it takes over, with those that its functions compute.

        Raises:
            SpaceError: a ``sample_from`` function fails.
        """
        if self._functions:
            resolution = _Resolution(self._tree, values, self._functions)
            for path in self._functions:
                resolution.value(path)
        return _grow(self._tree, values)

    def configs(self, grid_point: Mapping[str, object] | None = None) -> Iterator[Config]:
        """Yield each config of a space whose ``size`` is a number, or each one that has the values of *grid_point*."""
        fixed = grid_point or {}
        free = [path for path in self._entries if path not in fixed and path not in self._functions]
        for values in itertools.product(*(list(self._entries[path].values()) for path in free)):
            yield self._build({**fixed, **dict(zip(free, values, strict=True))})

    def check(self, config: Mapping[str, object], *, partial: bool = True) -> None:
        """Check a config, or with *partial* one that lacks values.

        Raises:
            SpaceError: a key is unknown, a value is not in its domain, or one is missing that may not.
        """
        given = self._match(config)
        missing = [path for path in self._entries if path not in given]
        if missing and not partial:
            raise SpaceError(f"the config lacks {', '.join(missing)}")

    def complete(self, point: Mapping[str, object], rng: random.Random) -> Config:
        """Return a config with the values of *point*, and what it lacks sampled.

        Raises:
            SpaceError: as :meth:`check` does.
        """
        return self._build(self._match(point), lambda entry: entry.sample(rng))

    def changed(self, config: Mapping[str, object], changes: Mapping[str, object], rng: random.Random) -> Config:
        """Return *config* with the values of *changes*, which may be a part of one at any depth; what neither has is sampled.

        Raises:
            SpaceError: as :meth:`check` does.
        """
        return self._build(self._match(config) | self._match(changes), lambda entry: entry.sample(rng))

    def values(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return the values of a config, or of a part of one, by path.

        Raises:
            SpaceError: it is not in the space.
        """
        return self._match(config)

    def config_of(self, chosen: Mapping[str, object]) -> Config:
        """Return the config with these values by path for all of ``domains``.

        Raises:
            SpaceError: a ``sample_from`` function fails.
        """
        constants = {path: copy_value(e.value) for path, e in self._entries.items() if isinstance(e, Constant)}
        return self.config({**constants, **chosen})

    def describe(self) -> dict[str, object]:
        """Return what defines each entry, by path, in values that a message can carry; a function by its name."""
        return {path: entry.describe() for path, entry in self._entries.items()}

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{path}: {entry}' for path, entry in self._entries.items())})"

    def _match(self, config: Mapping[str, object]) -> dict[str, object]:
        return dict(self._matched(config, self._tree, ""))

    def _matched(self, config: object, tree: _Tree, prefix: str) -> Iterator[tuple[str, object]]:
        if not isinstance(config, Mapping):
            raise SpaceError(f"{prefix.rstrip(SEPARATOR) or 'the config'}: {config!r} is not a dict")
        for key, value in config.items():
            if key not in tree:
                raise SpaceError(f"{prefix}{key} is not in the space, which has {', '.join(tree) or 'no keys'} there")
            path = prefix + key
            branch = tree[key]
            if isinstance(branch, dict):
                yield from self._matched(value, branch, path + SEPARATOR)
                continue
            try:
                checked = self._entries[path].check(value)
            except SpaceError as error:
                raise SpaceError(f"{path}: {error}") from None
            yield path, checked

    def _build(self, fixed: Mapping[str, object], fill: Callable[[Domain], object] | None = None) -> Config:
        values: dict[str, object] = {}
        for path, entry in self._entries.items():
            if path in fixed:
                values[path] = copy_value(fixed[path])
            elif fill is not None and path not in self._functions:
                values[path] = fill(entry)
        return self.config(values)


class AnySpace(Space):
    """Takes every config as it is, and has none of its own: for an experiment whose trials somebody else chooses."""

    def __init__(self) -> None:
        super().__init__({})

    def check(self, config: Mapping[str, object], *, partial: bool = True) -> None:
        self.values(config)

    def complete(self, point: Mapping[str, object], rng: random.Random) -> Config:
        return self.values(point)

    def changed(self, config: Mapping[str, object], changes: Mapping[str, object], rng: random.Random) -> Config:
        return self.values({**config, **changes})

    def values(self, config: Mapping[str, object]) -> dict[str, object]:
        if not isinstance(config, Mapping):
            raise SpaceError(f"the config {config!r} is not a dict")
        values: dict[str, object] = plain_value(dict(config), "the config")
        return values

    def describe(self) -> dict[str, object]:
        return {_ANYTHING: {}}


class _Resolution:
    """Computes the ``sample_from`` values of one config, each once and when it is first asked for."""

    def __init__(self, tree: _Tree, values: dict[str, object], functions: Mapping[str, Callable[..., object]]) -> None:
        self._values = values
        self._functions = functions
        self._view = _View(tree, self.value)
        self._under_way: list[str] = []

    def value(self, path: str) -> object:
        """Return a copy of the value at *path*, after computing it if need be."""
        if path not in self._values:
            self._values[path] = self._compute(path)
        return copy_value(self._values[path])

    def _compute(self, path: str) -> object:
        if path in self._under_way:
            circle = " needs ".join([*self._under_way[self._under_way.index(path) :], path])
            raise SpaceError(f"sample_from values need each other: {circle}; compute one of them without the others")
        self._under_way.append(path)
        try:
            result = self._functions[path](self._view)
        except SpaceError:
            raise
        except Exception as error:
            raise SpaceError(f"{path}: its sample_from function raised {type(error).__name__}: {error}") from error
        finally:
            self._under_way.pop()
        return plain_value(result, path)


class _View(Mapping[str, object]):
    """A read-only config, for a ``sample_from`` function."""

    __slots__ = ("_tree", "_value")

    def __init__(self, tree: _Tree, value: Callable[[str], object]) -> None:
        self._tree = tree
        self._value = value

    def __getitem__(self, key: str) -> object:
        if key not in self._tree:
            raise KeyError(f"{key} (there are {', '.join(self._tree)})")
        node = self._tree[key]
        return _View(node, self._value) if isinstance(node, dict) else self._value(node)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    def __len__(self) -> int:
        return len(self._tree)


def _constant(value: object, path: str) -> Constant:
    _refuse_inner_domains(value, path)
    return Constant(plain_value(dict(value) if isinstance(value, Mapping) else value, path))


def _refuse_inner_domains(value: object, path: str) -> None:
    for index, item in enumerate(value if isinstance(value, list | tuple) else ()):
        if isinstance(item, Domain):
            raise SpaceError(f"{path}[{index}]: {item} stands in a list, where nothing samples it; use a dict instead")


def _grow(tree: _Tree, values: Mapping[str, object]) -> Config:
    return {key: _grow(node, values) if isinstance(node, dict) else values[node] for key, node in tree.items()}


def space_of(description: Mapping[str, Mapping[str, object]]) -> Space:
    """Return the space that ``Space.describe`` described.

    Raises:
        SpaceError: it has a ``sample_from``, whose function stands in the user's code alone.
    """
    if _ANYTHING in description:
        return AnySpace()
    return Space(nested({path: _entry(path, entry) for path, entry in description.items()}))


def nested(entries: Mapping[str, object]) -> dict[str, object]:
    """Return values by path as the nested dicts that the paths stand for."""
    tree: dict[str, Any] = {}
    for path, value in entries.items():
        *folders, name = path.split(SEPARATOR)
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[name] = value
    return tree


def _entry(path: str, description: Mapping[str, object]) -> object:
    if "constant" in description:
        return description["constant"]
    try:
        return domain_of(description)
    except SpaceError as error:
        raise SpaceError(f"{path}: {error}") from None
