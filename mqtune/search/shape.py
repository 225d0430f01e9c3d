"""The structure of a search space: the tree of its dicts, lists and choices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mqtune.core.errors import SpaceError
from mqtune.search.values import copy_value, plain_value

#: The shape of a part of a space: a dict for a dict, a list for a list with domains, a ``Branch`` for a choice with
#: domains in its entries, and a path for any other value.
Node: TypeAlias = "str | dict[str, Node] | list[Node] | Branch"


@dataclass(frozen=True, slots=True)
class Branch:
    """A choice whose entries contain domains."""

    path: str
    #: The shape of each entry.
    entries: tuple[Node, ...]


class Resolution:
    """Computes the ``sample_from`` values of one config, each once when it is first read."""

    def __init__(
        self, tree: dict[str, Node], values: dict[str, object], functions: Mapping[str, Callable[..., object]]
    ) -> None:
        self._values = values
        self._functions = functions
        self._view = _Spec(tree, self.value)
        self._under_way: list[str] = []

    def value(self, path: str) -> object:
        """Return a copy of the value at *path*, computed if need be."""
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
            # A function in a nested dict may expect only that dict.
            whole = ". It gets the whole config" if isinstance(error, KeyError) and "/" in path else ""
            raise SpaceError(
                f"{path}: its sample_from function raised {type(error).__name__}: {error}{whole}"
            ) from error
        finally:
            self._under_way.pop()
        return plain_value(result, path)


class _View(Mapping[str, object]):
    """A read-only view of a dict in a config, for ``sample_from`` functions."""

    __slots__ = ("_tree", "_value")

    def __init__(self, tree: dict[str, Node], value: Callable[[str], object]) -> None:
        self._tree = tree
        self._value = value

    def __getitem__(self, key: str) -> object:
        if key not in self._tree:
            raise KeyError(f"{key} (there are {', '.join(self._tree)})")
        return _view_of(self._tree[key], self._value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    def __len__(self) -> int:
        return len(self._tree)

    def __getattr__(self, name: str) -> object:
        """Return a value by attribute, for Ray Tune's ``spec.config.lr``."""
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(str(error.args[0])) from None


class _Spec(_View):
    """A read-only view of the whole config. ``config`` is the same view, as in Ray Tune."""

    __slots__ = ()

    @property
    def config(self) -> _View:
        return _View(self._tree, self._value)


class _ListView(Sequence[object]):
    """A read-only view of a list in a config."""

    __slots__ = ("_nodes", "_value")

    def __init__(self, nodes: list[Node], value: Callable[[str], object]) -> None:
        self._nodes = nodes
        self._value = value

    def __getitem__(self, index: Any) -> Any:
        node = self._nodes[index]
        return _ListView(node, self._value) if isinstance(index, slice) else _view_of(node, self._value)

    def __len__(self) -> int:
        return len(self._nodes)


def _view_of(node: Node, value: Callable[[str], Any]) -> object:
    if isinstance(node, str):
        return value(node)
    if isinstance(node, Branch):
        return _view_of(node.entries[value(node.path)], value)
    return _View(node, value) if isinstance(node, dict) else _ListView(node, value)


def grown(node: Any, values: Mapping[str, Any]) -> Any:
    """Return the config, or the part of it with the shape *node*, that has these values by path."""
    if isinstance(node, dict):
        return {key: values[inner] if isinstance(inner, str) else grown(inner, values) for key, inner in node.items()}
    if isinstance(node, list):
        return [grown(inner, values) for inner in node]
    return values[node] if isinstance(node, str) else grown(node.entries[values[node.path]], values)


def walk(node: Node, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of the config that has these values, in order.

    The value of a choice is read from *values* after its path was yielded, so the caller may set it then.
    """
    if isinstance(node, str):
        yield node
    elif isinstance(node, Branch):
        yield node.path
        if node.path in values:
            yield from walk(node.entries[values[node.path]], values)
    else:
        for inner in node.values() if isinstance(node, dict) else node:
            yield from walk(inner, values)


def _heads(node: Node) -> Iterator[tuple[str, tuple[Node, ...]]]:
    """Yield the paths that all configs have.

    With a choice's path, yield the shapes of its entries, else ().
    """
    if isinstance(node, str):
        yield node, ()
    elif isinstance(node, Branch):
        yield node.path, node.entries
    else:
        for inner in node.values() if isinstance(node, dict) else node:
            yield from _heads(inner)


def count(node: Node, counts: Mapping[str, int]) -> int:
    """Return the number of combinations of values.

    *counts* has the number of values of each path.
    """
    heads = [(path, entries) for path, entries in _heads(node) if path in counts]
    return math.prod(
        sum(count(entry, counts) for entry in entries) if entries else counts[path] for path, entries in heads
    )


def combinations(node: Node, options: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, object]]:
    """Yield all combinations of values, as dicts by path, in nested-loop order.

    *options* has the values of each path.
    """
    heads = [(path, entries) for path, entries in _heads(node) if path in options]
    for parts in itertools.product(*(_alternatives(path, entries, options) for path, entries in heads)):
        yield {path: value for part in parts for path, value in part.items()}


def _alternatives(
    path: str, entries: tuple[Node, ...], options: Mapping[str, Sequence[Any]]
) -> Iterator[dict[str, object]]:
    for value in options[path]:
        if not entries:
            yield {path: value}
            continue
        for inner in combinations(entries[value], options):
            yield {path: value, **inner}
