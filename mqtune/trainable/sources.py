"""Finds the source of functions and classes of this process, and the names that they use."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

from mqtune.trainable.frozen_code import body_of
from mqtune.trainable.values import CannotTravel, UserObject, with_article

DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class NoSource(CannotTravel):
    """The source of a function or class is unknown in this process."""


def source_of(name: str, value: Callable[..., object]) -> str:
    """Return the source of a function or class: its definition, or the assignment of a lambda.

    Args:
        name: the variable that has the function or class as its value.

    Raises:
        NoSource: the source is unknown.
    """
    inner = _method_of(value) if isinstance(value, type) else inspect.unwrap(value)
    if isinstance(inner, FunctionType):
        lines = linecache.getlines(inner.__code__.co_filename)
        for node in _definitions("".join(lines), name, value.__name__):
            first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
            last = node.end_lineno or first
            if first <= inner.__code__.co_firstlineno <= last:
                return textwrap.dedent("".join(lines[first - 1 : last])).rstrip()
    raise NoSource(
        f"{with_article(type(value))} whose source code can't be found: define it in a file, and import that"
    )


def _method_of(value: type) -> object:
    """Return a method of a class with a known source, or None. A class itself has no position."""
    own = (
        inspect.unwrap(member) for member in map(_function_in, vars(value).values()) if isinstance(member, FunctionType)
    )
    return next((method for method in own if linecache.getlines(method.__code__.co_filename)), None)


def _function_in(value: object) -> object:
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, classmethod | staticmethod) else value


def _definitions(cell: str, *names: str) -> Iterator[ast.stmt]:
    for node in ast.walk(ast.Module(body_of(cell), [])):
        if (isinstance(node, DEFINITIONS) and node.name in names) or (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda) and _targets(node) == [names[0]]
        ):
            yield node


def _targets(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def maker_of(value: FunctionType) -> ast.FunctionDef:
    """Return the syntax of a function that returns this one, given its captured variables.

    Decorators are left out, as they have been applied. So are defaults, which are values and are set later, and
    annotations, which may name missing things.

    Raises:
        NoSource: the source is unknown.
    """
    node, code = _node_of(value.__code__), value.__code__
    arguments = node.args
    for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None:
            argument.annotation = None
    arguments.defaults, arguments.kw_defaults = [], [None] * len(arguments.kwonlyargs)
    if isinstance(node, ast.Lambda):
        variable = "made"
        while variable in code.co_freevars:
            variable += "_"
        body: list[ast.stmt] = [ast.Assign([ast.Name(variable, ast.Store())], node)]
    else:
        node.decorator_list, node.returns, variable = [], None, node.name
        body = [node]
    # A recursive function captures itself, under its own name.
    body += [
        ast.Assign([ast.Name(name, ast.Store())], ast.Name(variable, ast.Load()))
        for name in _own_names(value)
        if name != variable
    ]
    body.append(ast.Return(ast.Name(variable, ast.Load())))
    names = [ast.arg(name) for name in code.co_freevars if name not in _own_names(value)]
    maker = ast.parse("def make(): pass").body[0]
    assert isinstance(maker, ast.FunctionDef)  # noqa: S101 - says so to the type checker
    maker.args.args, maker.body = names, body
    return ast.fix_missing_locations(maker)


def _node_of(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda:
    """Return the syntax of the function with this code.

    Raises:
        NoSource: the source is unknown, or has changed.
    """
    if Path(code.co_filename).is_file():
        linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    nodes = list(ast.walk(ast.Module(body_of(text), [])))
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    lambdas = [node for node in nodes if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    if code.co_name == "<lambda>" and (lambda_ := _innermost(lambdas, code)) is not None:
        return lambda_
    raise NoSource(
        f"{code.co_qualname}, whose source code can't be found or has changed since it ran: run its definition again"
    )


def _innermost(lambdas: list[ast.Lambda], code: CodeType) -> ast.Lambda | None:
    """Return the innermost lambda whose body has all instructions of a code, or None."""
    places = [place for place in code.co_positions() if None not in place and place[2:] != (0, 0)]
    spans = [((line, column), (end, end_column)) for line, end, column, end_column in places]

    def contains_code(node: ast.Lambda) -> bool:
        first = (node.body.lineno, node.body.col_offset)
        last = (node.body.end_lineno or 0, node.body.end_col_offset or 0)
        return all(first <= begin and end <= last for begin, end in spans)

    if not spans:
        # In Python 3.12 the code of a lambda that returns a constant has no other positions.
        lambdas = [
            node for node in lambdas if isinstance(node.body, ast.Constant) and node.body.value in code.co_consts
        ]
        return lambdas[0] if len(lambdas) == 1 else None
    candidates = [node for node in lambdas if contains_code(node)]
    return max(candidates, key=lambda node: (node.lineno, node.col_offset), default=None)


def _own_names(value: FunctionType) -> list[str]:
    return [name for name, cell in _captured_cells(value) if _cell_content(name, cell) is value]


def captured_values(value: FunctionType) -> list[tuple[object, str]]:
    """Return the values of a function's captured variables with their names, but not itself."""
    own = _own_names(value)
    return [(_cell_content(name, cell), name) for name, cell in _captured_cells(value) if name not in own]


def _captured_cells(value: FunctionType) -> list[tuple[str, UserObject]]:
    return list(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))


def _cell_content(name: str, cell: UserObject) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        raise CannotTravel(f"a function that uses {name}, a variable without a value") from None


def _symbols(source: str) -> Iterator[tuple[bool, symtable.Symbol]]:
    tables = [symtable.symtable(source, "a source", "exec")]
    for table in tables:
        tables += table.get_children()
        yield from ((table is tables[0], symbol) for symbol in table.get_symbols())


def names_in(source: str) -> list[str]:
    """Return the names that a source uses but does not define, in order."""
    used = (symbol for is_top, symbol in _symbols(source) if symbol.is_global() or (is_top and symbol.is_referenced()))
    return list(dict.fromkeys(name.get_name() for name in used))


def submodules_in(source: str, name: str, module: str) -> Iterator[str]:
    """Yield an import line for each submodule that a source uses, such as ``a.b`` in ``a.b.c()``.

    Args:
        name: the name of the package's module in it.
        module: the real name of that module.
    """
    for node in ast.walk(ast.Module(body_of(source), [])):
        path = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        inner = f"{module}{path.removeprefix(name)}"
        if path.startswith(f"{name}.") and inner in sys.modules:
            yield f"import {inner}"


# Code.


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes_in(inner)


def _globals_of(function: FunctionType) -> Iterator[str]:
    """Yield the global names that a function and its inner functions read."""
    for code in _codes_in(function.__code__):
        yield from (
            str(instruction.argval) for instruction in dis.get_instructions(code) if instruction.opname == "LOAD_GLOBAL"
        )


def set_names(statements: list[ast.stmt]) -> set[str]:
    """Return the names that a module's statements set."""
    symbols = _symbols(ast.unparse(ast.Module(statements, [])))
    return {
        symbol.get_name() for is_top, symbol in symbols if is_top and (symbol.is_assigned() or symbol.is_imported())
    }


def set_globals(source: bytes) -> set[str]:
    """Return the module's names that its functions set by a global statement."""
    symbols = _symbols(decode_source(source))
    return {
        symbol.get_name()
        for is_top, symbol in symbols
        if not is_top and symbol.is_declared_global() and symbol.is_assigned()
    }


def used_globals(value: UserObject, names: Mapping[str, UserObject]) -> Iterator[str]:
    """Yield the global names that a function or class uses, also through others of ``__main__``."""
    waiting, seen = [value], set[str]()
    for used in waiting:
        kind = used if isinstance(used, FunctionType | type) else type(used)
        inner = vars(kind).values() if isinstance(kind, type) else [inspect.unwrap(kind)]
        for function in filter(inspect.isfunction, map(_function_in, inner)):
            for name in _globals_of(function):
                if name not in seen:
                    seen.add(name)
                    yield name
                    if getattr(names.get(name), "__module__", None) == "__main__":
                        waiting.append(names[name])
