"""Search spaces: the sets of configs that experiments may try."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from mqtune.core.errors import SpaceError
from mqtune.core.text import nested
from mqtune.core.trial import Config
from mqtune.search.domains import definition_of, sample_from
from mqtune.search.kinds import (
    Constant,
    Derived,
    Domain,
    Entries,
    Grid,
    describe_definition,
    has_domain,
    plain_definition,
    written,
)
from mqtune.search.shape import Branch, Node, Resolution, combinations, count, grown, walk
from mqtune.search.values import MAX_DEPTH, copy_value, plain_value

if TYPE_CHECKING:
    from numpy.random import Generator

#: The only key in the description of a space that accepts every config.
_ANYTHING: Final = ""
#: The constraint's key in a description. No path begins with a slash.
_CONSTRAINT: Final = "/constraint"
SEPARATOR: Final = "/"

#: Number of configs in the first block of draws. It is small, so that the first config comes fast.
_FIRST_BLOCK: Final = 4
#: Largest number of configs in a block.
_LARGEST_BLOCK: Final = 256

#: Largest number of samples to find a config that the constraint allows. They take about 0.1 s.
_MOST_SAMPLES: Final = 10_000
#: The same for each point of a grid.
_GRID_SAMPLES: Final = 200
#: Largest space with a constraint whose configs are counted.
_MOST_COUNTED: Final = 10_000


class _Spot(NamedTuple):
    """The position of a part of a space."""

    #: Its path, with the indexes of choices' entries.
    path: str
    #: Its position in a config, without these indexes.
    place: str
    #: By the path of each enclosing choice, the index of the entry.
    within: Mapping[str, int]

    def at(self, key: str) -> _Spot:
        start, place = (f"{self.path}{SEPARATOR}", f"{self.place}{SEPARATOR}") if self.path else ("", "")
        return _Spot(start + key, place + key, self.within)

    def item(self, index: int) -> _Spot:
        return _Spot(f"{self.path}{SEPARATOR}{index}", f"{self.place}[{index}]", self.within)

    def entry(self, index: int) -> _Spot:
        return _Spot(f"{self.path}{SEPARATOR}{index}", self.place, {**self.within, self.path: index})


class Space:
    """The configs that an experiment may try. Immutable.

    Each value has a *path*, such as ``optimizer/0/lr``. It consists of the keys of dicts, the indexes in lists and,
    below a ``choice`` with domains in its entries, the index of the entry. At its own path, such a choice has this
    index as its value. A config has only the values of the chosen entry. If a config fits several entries of a choice,
    the first entry whose values are all in the config counts, or else the first one that fits.

    Args:
        definition: a dict of domains, constants, and further dicts and lists. Values are drawn in the order of its
            keys. A grid is tried in nested loops, with the last key in the innermost loop.
        constraint: a function that gets a copy of each complete config, and returns whether it may be tried. Refused
            samples are drawn again. A point of the grid is left out if 200 samples at this point are all refused. Only
            the driver calls the function. For reproducible runs the result must depend only on the config.

    Raises:
        SpaceError: a key is not a string or has a ``/``, a value can't be sent to a worker, a function fails, or the
            constraint refuses all of 10,000 samples. To find mistakes before the first trial, functions are called here
            with each entry of each choice.
    """

    def __init__(self, definition: Mapping[str, object], *, constraint: Callable[[Config], bool] | None = None) -> None:
        if isinstance(definition, Domain):
            raise SpaceError(
                "the search space is one domain, and not a dict of names and domains: give it a name, such as "
                "{'model': choice(…)}; the config then has it by this name"
            )
        if not isinstance(definition, Mapping):
            raise SpaceError(f"the search space {definition!r} is not a dict of names and domains")
        if constraint is not None and not callable(constraint):
            raise SpaceError(
                f"constraint={constraint!r} is not a function that takes a config and returns True or False"
            )
        self._constraint = constraint
        self._entries: dict[str, Domain] = {}
        self._places: dict[str, str] = {}
        self._outer: dict[str, object] = {}
        self._ways: list[dict[str, object]] = []
        self._tree = self._add_dict(definition, _Spot("", "", {}))
        self._grid = {path: _steps(entry) for path, entry in self._entries.items() if _is_grid(entry)}
        self._functions = {path: entry.function for path, entry in self._entries.items() if isinstance(entry, Derived)}
        self._domains = {p: entry for p, entry in self._entries.items() if not isinstance(entry, Constant | Derived)}
        self._try_functions()

    def _try_functions(self) -> None:
        if not self._functions and self._constraint is None:
            return
        rng = random.Random(0)
        for way in self._ways or [{}]:
            self.allows(self.config(self._fill(way, rng)))
        if self._constraint is not None:
            self.sample(rng)

    def _add_dict(self, definition: Mapping[str, object], spot: _Spot) -> dict[str, Node]:
        if spot.path.count(SEPARATOR) > MAX_DEPTH:
            raise SpaceError(f"a search space has more than {MAX_DEPTH} levels of dicts; does one hold itself?")
        for key in definition:
            if not isinstance(key, str) or not key or SEPARATOR in key:
                where = f" under {spot.place!r}" if spot.place else ""
                raise SpaceError(f"the key {key!r}{where} is not a name; give a string that is not empty, without '/'")
        return {key: self._add_part(value, spot.at(key)) for key, value in definition.items()}

    def _add_part(self, definition: object, spot: _Spot) -> Node:
        if isinstance(definition, Mapping) and definition:
            return self._add_dict(definition, spot)
        if isinstance(definition, list | tuple) and has_domain(definition):
            self._note_outer(spot, plain_definition(definition, spot.place))
            return [self._add_part(inner, spot.item(index)) for index, inner in enumerate(definition)]
        domain = definition if isinstance(definition, Domain) else _constant(definition, spot.place)
        self._add_domain(domain, spot)
        if not isinstance(domain, Entries):
            return spot.path
        ways = [spot.entry(index) for index in range(len(domain.entries))]
        self._ways += [dict(way.within) for way in ways]
        return Branch(spot.path, tuple(map(self._add_part, domain.entries, ways)))

    def _add_domain(self, domain: Domain, spot: _Spot) -> None:
        if _is_grid(domain) and not all(_is_grid(self._entries[path]) for path in spot.within):
            raise SpaceError(
                f"{spot.place}: {domain} stands in an entry of a choice, so a grid can't try each of its values; use "
                "grid_search instead of that choice, or choice instead of this grid_search"
            )
        self._entries[spot.path] = domain
        self._places[spot.path] = spot.place
        self._note_outer(spot, domain)

    def _note_outer(self, spot: _Spot, definition: object) -> None:
        if spot.path == spot.place:
            self._outer[spot.path] = definition

    @property
    def domains(self) -> dict[str, Domain]:
        """All domains by path, except constants and ``sample_from`` functions."""
        return dict(self._domains)

    @property
    def places(self) -> dict[str, str]:
        """The position in a config by path: the path without indexes of choices' entries.

        Several paths may have the same position.
        """
        return dict(self._places)

    @property
    def has_conditions(self) -> bool:
        """Whether some paths exist only in some configs, because of a choice."""
        return bool(self._ways)

    @cached_property
    def grid_size(self) -> int:
        """Number of points of the grid. It is 1 without ``grid_search``."""
        if self._constraint is not None and self._grid:
            return len(self._allowed_points)
        return count(self._tree, {path: len(options) for path, options in self._grid.items()})

    @property
    def has_grid(self) -> bool:
        return bool(self._grid)

    @cached_property
    def size(self) -> int | None:
        """Number of different configs.

        None if they can't be counted, or are more than 10,000 with a constraint. If several entries of a choice give
        equal configs, each counts.
        """
        size = self._size()
        if self._constraint is None or size is None:
            return size
        return sum(1 for _ in self.configs()) if size <= _MOST_COUNTED else None

    def _size(self) -> int | None:
        sizes = {path: entry.size for path, entry in self._entries.items()}
        known = {path: size for path, size in sizes.items() if size is not None}
        return count(self._tree, known) if len(known) == len(sizes) else None

    def walk(self, values: Mapping[str, object]) -> Iterator[str]:
        """Yield the paths of the config that has these values, in order.

        The value of a choice is read when the next path is requested, so the caller may set it before. If it is
        missing, the paths below the choice are left out.
        """
        return walk(self._tree, values)

    def grid_points(self) -> Iterator[dict[str, object]]:
        """Yield each point of the grid, as a dict of values by path, in nested-loop order.

        Without a grid, yield ``{}``.
        """
        is_limited = self._constraint is not None and self.has_grid
        for point in self._allowed_points if is_limited else combinations(self._tree, self._grid):
            yield {path: copy_value(value) for path, value in point.items()}

    @cached_property
    def _allowed_points(self) -> list[dict[str, object]]:
        rng = random.Random(0)
        points = [p for p in combinations(self._tree, self._grid) if self._sample_allowed(p, rng, _GRID_SAMPLES)[1]]
        if not points:
            raise SpaceError(
                f"the constraint {self.constraint} allows no point of the grid, with {_GRID_SAMPLES} samples each"
            )
        return points

    @property
    def constraint(self) -> str:
        """The name of the constraint's function. Empty without a constraint."""
        if self._constraint is None:
            return ""
        return str(getattr(self._constraint, "__name__", type(self._constraint).__name__))

    def allows(self, config: Config) -> bool:
        """Return whether the constraint allows a complete config.

        Raises:
            SpaceError: the constraint's function fails, or returns None.
        """
        if self._constraint is None:
            return True
        try:
            answer: bool | None = self._constraint(copy_value(config))
            if answer is not None:
                return bool(answer)
        except Exception as error:
            raise SpaceError(
                f"the constraint {self.constraint} raised {type(error).__name__}: {error}, for {config!r}"
            ) from error
        raise SpaceError(f"the constraint {self.constraint} returned None for {config!r}; return True or False")

    def sample(self, rng: random.Random, grid_point: Mapping[str, object] | None = None) -> Config:
        """Return a random config, with the values of *grid_point* if given.

        The same state of *rng* gives the same config.

        Raises:
            SpaceError: a function fails, or the constraint refuses all of 10,000 samples.
        """
        return self._build(grid_point or {}, rng)

    def grid_point(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return the values of *config* that belong to the grid, by path.

        Raises:
            SpaceError: the config is not in the space.
        """
        return {path: value for path, value in self._match(config).items() if path in self._grid}

    def draws(self, rng: Generator) -> Iterator[dict[str, object]]:
        """Yield random values by path, without end.

        They have no grid values and no ``sample_from`` values. The values are drawn in growing blocks, because NumPy
        needs the same time for dozens of numbers as for one. The same state of *rng*, with the same other use of it in
        between, gives the same values.
        """
        drawn = [
            (p, entry.at) for p, entry in self._entries.items() if p not in self._grid and p not in self._functions
        ]
        size = _FIRST_BLOCK
        while True:
            for shares in rng.random((size, len(drawn))).tolist():
                yield {path: at(share) for (path, at), share in zip(drawn, shares, strict=True)}
            size = min(2 * size, _LARGEST_BLOCK)

    def draw(self, draws: Iterator[dict[str, object]], grid_point: Mapping[str, object]) -> Config:
        """Return the config of the next of *draws*, at this grid point, that the constraint allows.

        Raises:
            SpaceError: as :meth:`sample`.
        """
        for _ in range(_MOST_SAMPLES):
            config = self.config({**next(draws), **grid_point})
            if self.allows(config):
                return config
        raise self._refusal(config, is_sampled=True)

    def config(self, values: dict[str, object]) -> Config:
        """Return the config that has these values by path, and compute its ``sample_from`` values.

        Values of entries that are not chosen are left out. The config uses the objects in *values* without a copy.

        Raises:
            SpaceError: a ``sample_from`` function fails.
        """
        if self._functions:
            resolution = Resolution(self._tree, values, self._functions)
            for path in self.walk(values):
                if path in self._functions:
                    resolution.value(path)
        config: Config = grown(self._tree, values)
        return config

    def configs(self, grid_point: Mapping[str, object] | None = None) -> Iterator[Config]:
        """Yield each config of a countable space.

        With *grid_point*, yield only configs with its values.
        """
        fixed = grid_point or {}
        options = {
            path: [fixed[path]] if path in fixed else list(entry.values())
            for path, entry in self._entries.items()
            if path not in self._functions
        }
        for values in combinations(self._tree, options):
            config = self.config({path: copy_value(value) for path, value in values.items()})
            if self.allows(config):
                yield config

    def check(self, config: Mapping[str, object], *, partial: bool = True) -> None:
        """Check that a config is in the space. With *partial* it may lack values.

        Raises:
            SpaceError: a key is unknown, a value is missing or not in its domain, or the constraint refuses the config.
        """
        given = self._match(config)
        missing = [path for path in self.walk(given) if path not in given]
        if missing and not partial:
            raise SpaceError(f"the config lacks {', '.join(self._places[path] for path in missing)}")
        if self._constraint is not None and not any(path in self._domains for path in missing):
            self._build(given, random.Random(0))

    def complete(self, point: Mapping[str, object], rng: random.Random) -> Config:
        """Return a config with the values of *point*, and with missing values sampled.

        Raises:
            SpaceError: as :meth:`check` does.
        """
        return self._build(self._match(point), rng)

    def changed(self, config: Mapping[str, object], changes: Mapping[str, object], rng: random.Random) -> Config:
        """Return *config* with the values of *changes*, which is a part of a config.

        Values that both lack are sampled. A choice keeps its entry if the changes fit that entry.

        Raises:
            SpaceError: as :meth:`check` does.
        """
        before = self._match(config)
        return self._build(before | self._match(changes, before), rng)

    def fixed(self, path: str, value: object) -> Space:
        """Return this space with a constant in place of the domain at *path*.

        Raises:
            SpaceError: there is no domain at the path, it is in a list or a choice, or it contains domains.
        """
        if path not in self._outer or isinstance(self._outer[path], Entries):
            raise SpaceError(f"{path} is not a domain outside of lists and choices whose values have no domains")
        return Space(nested({**self._outer, path: Constant(value)}, SEPARATOR), constraint=self._constraint)

    def with_value(self, config: Mapping[str, object], path: str, value: object) -> Config:
        """Return a config with another value at a path, and new ``sample_from`` values.

        Raises:
            SpaceError: the config is not in the space, or a function fails.
        """
        values = {place: kept for place, kept in self._match(config).items() if place not in self._functions}
        return self.config({**values, path: copy_value(value)})

    def fit(self, config: Mapping[str, object]) -> Config:
        """Convert a config of another space to this space.

        The result has the values of *config* for this space's domains. Outside of lists and choices, it has this
        space's constants and ``sample_from`` values. Unknown keys are left out.

        Raises:
            SpaceError: a value is missing or not in its domain, or the constraint refuses the config.
        """
        given = self._match(self._searched_part(config, self._tree))
        if missing := [path for path in self.walk(given) if path in self._domains and path not in given]:
            raise SpaceError(f"the config lacks {', '.join(self._places[path] for path in missing)}")
        fitted = self.config_of(given)
        if not self.allows(fitted):
            raise self._refusal(fitted, is_sampled=False)
        return fitted

    def _searched_part(self, value: object, node: Node) -> object:
        if not isinstance(node, dict) or not isinstance(value, Mapping):
            return value
        searched = {key: inner for key, inner in node.items() if not isinstance(inner, str) or inner in self._domains}
        return {key: self._searched_part(value[key], inner) for key, inner in searched.items() if key in value}

    def values(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return the values of a config, or of a part of one, by path.

        Raises:
            SpaceError: the config is not in the space.
        """
        return self._match(config)

    def config_of(self, chosen: Mapping[str, object]) -> Config:
        """Return the config with these values, which *chosen* has by path for all ``domains``.

        Raises:
            SpaceError: a ``sample_from`` function fails.
        """
        constants = {path: copy_value(e.value) for path, e in self._entries.items() if isinstance(e, Constant)}
        return self.config({**constants, **chosen})

    def describe(self) -> dict[str, object]:
        """Return a description of each entry by path. ``space_of`` rebuilds the space from it."""
        entries: dict[str, object] = {path: describe_definition(entry) for path, entry in self._outer.items()}
        if self._constraint is not None:
            entries[_CONSTRAINT] = {"function": self.constraint}
        return entries

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{path}: {written(entry)}' for path, entry in self._outer.items())})"

    def _match(self, config: object, likely: Mapping[str, object] | None = None) -> dict[str, object]:
        """Return the values of a config by path.

        If several entries of a choice fit, prefer the entry whose index is in *likely*, by the choice's path.
        """
        return dict(self._match_node(config, self._tree, "", likely or {}))

    def _match_node(
        self, value: object, node: Node, place: str, likely: Mapping[str, object]
    ) -> Iterator[tuple[str, object]]:
        if isinstance(node, str):
            yield node, self._check_value(value, node, place)
        elif isinstance(node, Branch):
            yield from self._match_entry(value, node, place, likely).items()
        elif isinstance(node, list):
            if not isinstance(value, list | tuple) or len(value) != len(node):
                raise SpaceError(f"{place}: {value!r} is not a list of {len(node)}")
            for index, item in enumerate(value):
                yield from self._match_node(item, node[index], f"{place}[{index}]", likely)
        else:
            if not isinstance(value, Mapping):
                raise SpaceError(f"{place or 'the config'}: {value!r} is not a dict")
            prefix = place + SEPARATOR if place else ""
            for key, inner in value.items():
                if key not in node:
                    raise SpaceError(
                        f"{prefix}{key} is not in the space, which has {', '.join(node) or 'no keys'} there"
                    )
                yield from self._match_node(inner, node[key], prefix + key, likely)

    def _match_entry(
        self, value: object, branch: Branch, place: str, likely: Mapping[str, object]
    ) -> dict[str, object]:
        matches, refusals = [], []
        for index, entry in enumerate(branch.entries):
            try:
                values = dict(self._match_node(value, entry, place, likely))
            except SpaceError as error:
                refusals.append(str(error))
            else:
                lacks = any(path not in values for path in walk(entry, values))
                matches.append((index != likely.get(branch.path), lacks, index, values))
        if not matches:
            raise SpaceError(f"{place}: {value!r} fits no entry of {self._entries[branch.path]}: {'; '.join(refusals)}")
        *_, index, values = min(matches, key=lambda fitting: fitting[:3])
        return {branch.path: index, **values}

    def _check_value(self, value: object, path: str, place: str) -> object:
        try:
            return self._entries[path].check(value)
        except SpaceError as error:
            raise SpaceError(f"{place}: {error}") from None

    def _build(self, fixed: Mapping[str, object], rng: random.Random) -> Config:
        config, is_allowed = self._sample_allowed(fixed, rng, _MOST_SAMPLES)
        if not is_allowed:
            raise self._refusal(config, is_sampled=self._has_free(fixed))
        return config

    def _sample_allowed(self, fixed: Mapping[str, object], rng: random.Random, samples: int) -> tuple[Config, bool]:
        """Return the first sample that the constraint allows, and True.

        Without any, the last one, and False.
        """
        for _ in range(samples if self._has_free(fixed) else 1):
            config = self.config(self._fill(fixed, rng))
            if self.allows(config):
                return config, True
        return config, False

    def _fill(self, fixed: Mapping[str, object], rng: random.Random) -> dict[str, object]:
        values: dict[str, object] = {}
        for path in self.walk(values):
            if path in fixed:
                values[path] = copy_value(fixed[path])
            elif path not in self._functions:
                values[path] = self._entries[path].sample(rng)
        return values

    def _has_free(self, fixed: Mapping[str, object]) -> bool:
        return any(path not in fixed and path in self._domains for path in self.walk(fixed))

    def _refusal(self, config: Config, *, is_sampled: bool) -> SpaceError:
        if not is_sampled:
            return SpaceError(f"the constraint {self.constraint} refuses {config!r}")
        return SpaceError(
            f"the constraint {self.constraint} allows none of {_MOST_SAMPLES:,} sampled configs, the last of which was "
            f"{config!r}; give narrower domains, of which the constraint allows a larger part"
        )


class AnySpace(Space):
    """A space that accepts every config, for experiments whose trials a program adds."""

    def __init__(self) -> None:
        super().__init__({})

    def check(self, config: Mapping[str, object], *, partial: bool = True) -> None:
        self.values(config)

    def complete(self, point: Mapping[str, object], rng: random.Random) -> Config:
        return self.values(point)

    def changed(self, config: Mapping[str, object], changes: Mapping[str, object], rng: random.Random) -> Config:
        return self.values({**config, **changes})

    def fit(self, config: Mapping[str, object]) -> Config:
        return self.values(config)

    def values(self, config: Mapping[str, object]) -> dict[str, object]:
        if not isinstance(config, Mapping):
            raise SpaceError(f"the config {config!r} is not a dict")
        values: dict[str, object] = plain_value(dict(config), "the config")
        return values

    def describe(self) -> dict[str, object]:
        return {_ANYTHING: {}}


def _is_grid(domain: Domain) -> bool:
    return isinstance(domain, Grid | Entries) and domain.name == Grid.name


def _steps(domain: Domain) -> list[object]:
    return list(domain.options if isinstance(domain, Grid) else domain.values())


def _constant(value: object, path: str) -> Constant:
    return Constant(plain_value(dict(value) if isinstance(value, Mapping) else value, path))


def space_of(description: Mapping[str, Mapping[str, object]], *, any_unknown: bool = False) -> Space:
    """Rebuild a space from the result of ``Space.describe``.

    Args:
        any_unknown: whether to leave out functions of the user's code. The space can then read configs, but not sample
            them.

    Raises:
        SpaceError: the space has a ``sample_from`` or a constraint, whose function exists only in the user's code.
    """
    if _ANYTHING in description:
        return AnySpace()
    entries = dict(description)
    constraint = entries.pop(_CONSTRAINT, None)
    if constraint is not None and not any_unknown:
        raise SpaceError(f"the space's constraint {constraint['function']} exists in your code alone")
    unknown = sample_from(lambda _: None) if any_unknown else None
    return Space(nested({path: _entry(path, entry, unknown) for path, entry in entries.items()}, SEPARATOR))


def _entry(path: str, description: Mapping[str, object], unknown: Domain | None) -> object:
    try:
        return definition_of(description, unknown)
    except SpaceError as error:
        raise SpaceError(f"{path}: {error}") from None
