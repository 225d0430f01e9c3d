"""Executes a user's file as a trial's main module, as ``python program.py`` would."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import linecache
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from mqtune.trainable.frozen_code import PARSING, frozen

_NAME: Final = "__main__"
#: Name of the main module in multiprocessing's spawned children.
_NAME_IN_CHILDREN: Final = "__mp_main__"
#: Origins of modules without a file.
_IN_PYTHON: Final = ("built-in", "frozen")


def execute_file(path: Path, *, as_program: bool = False, module: str = "") -> ModuleType:
    """Execute a file as the module ``__main__``, and return that module.

    It stays ``__main__``. It is also ``__mp_main__``, so that pools of every kind and pickles find its classes and
    functions. Unless the file runs as a module, its folder is put first on ``sys.path``; see ``folder_of``.

    Args:
        path: absolute path of the file.
        as_program: whether to run the block below ``if __name__ == "__main__":``.
        module: the module's name, if it runs by ``python -m``; empty for a file.
    """
    main = ModuleType(_NAME)
    main.__file__ = str(path)
    main.__loader__ = SourceFileLoader(_NAME, str(path))
    if module:
        if path.name == "__main__.py" and module.rpartition(".")[2] != "__main__":
            module = f"{module}.__main__"
        spec = importlib.util.find_spec(module)
        main.__spec__ = spec
        main.__package__ = module.rpartition(".")[0]
    else:
        main.__package__ = None
        put_first(str(folder_of(path)))
        _forget_hidden(folder_of(path))
    main.__dict__["__cached__"] = None
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    sys.modules[_NAME] = sys.modules[_NAME_IN_CHILDREN] = main
    exec(_compiled(path, _source_of(path), as_program=as_program), vars(main))  # noqa: S102 - it is the user's program
    return main


def compile_file(path: Path) -> None:
    """Compile the file of a main module in advance, so that forks of this process needn't."""
    # An error is raised when the file is executed.
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        _compiled(path, _source_of(path), as_program=False)


def folder_of(program: Path) -> Path:
    """Return the folder from which a program imports. For a link it is the linked file's folder."""
    return program.resolve().parent if program.is_symlink() else program.parent


def put_first(*folders: str) -> None:
    """Put folders first on ``sys.path``, so that their modules win over installed ones."""
    if sys.path[: len(folders)] != [*folders]:
        sys.path[:0] = folders


def _source_of(path: Path) -> bytes:
    """Return a file's content at the experiment's start, or else its current content."""
    kept = frozen().source(str(path))
    now = path.read_bytes() if path.is_file() else None
    if kept is None:
        return path.read_bytes() if now is None else now
    if kept != now:
        # Otherwise tracebacks and inspect would show the lines on the disk.
        lines = kept.decode(errors="replace").splitlines(keepends=True)
        linecache.cache[str(path)] = (len(kept), None, lines, str(path))
    return kept


@functools.lru_cache(maxsize=4)
def _compiled(path: Path, source: bytes, *, as_program: bool) -> CodeType:
    if as_program:
        return compile(source, str(path), "exec", dont_inherit=True)
    with PARSING:
        tree = ast.parse(source, str(path))
    return compile(_WithoutGuard().visit(tree), str(path), "exec", dont_inherit=True)


class _WithoutGuard(ast.NodeTransformer):
    """Makes top-level comparisons of ``__name__`` with "__main__" false. Line numbers stay."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        # Code in functions runs later, and sees a program's name.
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        match node:
            case ast.Compare(ast.Name("__name__"), [op], [ast.Constant("__main__")]):
                pass
            case ast.Compare(ast.Constant("__main__"), [op], [ast.Name("__name__")]):
                pass
            case _:
                return node
        match op:
            case ast.Eq() | ast.Is():
                return ast.copy_location(ast.Constant(False), node)
            case ast.NotEq() | ast.IsNot():
                return ast.copy_location(ast.Constant(True), node)
        return node


def _forget_hidden(folder: Path) -> None:
    """Unload modules of this process that a file in the program's folder would replace."""
    beside = {entry.name.partition(".")[0] for entry in folder.iterdir()} if folder.is_dir() else set()
    for name in beside & sys.modules.keys():
        origin = getattr(getattr(sys.modules[name], "__spec__", None), "origin", None)
        if name in (_NAME, "mqtune") or origin in _IN_PYTHON:
            continue
        spec: ModuleSpec | None = PathFinder.find_spec(name, [str(folder)])
        if spec is not None and spec.origin and spec.origin != getattr(sys.modules[name], "__file__", None):
            del sys.modules[name]
