"""The structure of a search space: the tree of its dicts, lists and choices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mqtune.core.errors import SpaceError
from mqtune.search.values import copy_value, plain_value

#: The shape of a definition: a dict for a dict, a list for a list with domains, and a path for any other value.
Node: TypeAlias = "str | dict[str, Node] | list[Node] | Branch"


@dataclass(frozen=True, slots=True)
class Branch:
    """A choice whose entries contain domains: its path, and each entry's shape."""

    path: str
    entries: tuple[Node, ...]


class Resolution:
    """Computes the ``sample_from`` values of one config, each once, on first access."""

    def __init__(
        self, tree: dict[str, Node], values: dict[str, object], functions: Mapping[str, Callable[..., object]]
    ) -> None:
        self._values = values
        self._functions = functions
        self._view = _Spec(tree, self.value)
        self._under_way: list[str] = []

    def value(self, path: str) -> object:
        """Return a copy of the value at *path*."""
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
    __slots__ = ("_tree", "_value")

    def __init__(self, tree: dict[str, Node], value: Callable[[str], object]) -> None:
        self._tree = tree
        self._value = value

    def __getitem__(self, key: str) -> object:
        if key not in self._tree:
            raise KeyError(f"{key} (there are {', '.join(self._tree)})")
        return _seen(self._tree[key], self._value)

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
    """The whole config, for a ``sample_from`` function. ``config`` is the same, as in Ray Tune."""

    __slots__ = ()

    @property
    def config(self) -> _View:
        return _View(self._tree, self._value)


class _ListView(Sequence[object]):
    __slots__ = ("_nodes", "_value")

    def __init__(self, nodes: list[Node], value: Callable[[str], object]) -> None:
        self._nodes = nodes
        self._value = value

    def __getitem__(self, index: Any) -> Any:
        node = self._nodes[index]
        return _ListView(node, self._value) if isinstance(index, slice) else _seen(node, self._value)

    def __len__(self) -> int:
        return len(self._nodes)


def _seen(node: Node, value: Callable[[str], Any]) -> object:
    if isinstance(node, str):
        return value(node)
    if isinstance(node, Branch):
        return _seen(node.entries[value(node.path)], value)
    return _View(node, value) if isinstance(node, dict) else _ListView(node, value)


def grown(node: Any, values: Mapping[str, Any]) -> Any:
    """Return the config, or a part of one, with these values by path."""
    if isinstance(node, dict):
        return {key: values[inner] if isinstance(inner, str) else grown(inner, values) for key, inner in node.items()}
    if isinstance(node, list):
        return [grown(inner, values) for inner in node]
    return values[node] if isinstance(node, str) else grown(node.entries[values[node.path]], values)


def walk(node: Node, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of a config with these values, in order.

    A choice's value is read after its path was yielded.
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
    """Yield the paths that all configs have, each with the entries that it may lead to."""
    if isinstance(node, str):
        yield node, ()
    elif isinstance(node, Branch):
        yield node.path, node.entries
    else:
        for inner in node.values() if isinstance(node, dict) else node:
            yield from _heads(inner)


def count(node: Node, counts: Mapping[str, int]) -> int:
    """Return the number of combinations of values, given their numbers by path."""
    heads = [(path, entries) for path, entries in _heads(node) if path in counts]
    return math.prod(
        sum(count(entry, counts) for entry in entries) if entries else counts[path] for path, entries in heads
    )


def combinations(node: Node, options: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, object]]:
    """Yield all combinations of values of these paths, in nested-loop order."""
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
