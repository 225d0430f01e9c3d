"""Functions that a written module calls to rebuild the driver's trainable on a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType

from mqtune.trainable import main_module
from mqtune.trainable.spec import Function, imported_on_worker
from mqtune.trainable.values import UserObject


def script(written: str, name: str) -> ModuleType:
    """Execute the driver's script without its main block, and return it as a module.

    Args:
        written: path of the written module.
        name: path of the script, from the written module's folder.
    """
    path = Path(written).parent / name
    try:
        with imported_on_worker(path):
            return main_module.execute_file(path)
    except FileNotFoundError as error:
        error.add_note(
            f"The trainable runs with a copy of its code in {path.parent}, without other files: give "
            "Process(bundle='.'), which brings all files of that folder, or an absolute path"
        )
        raise


def within(module: ModuleType) -> Callable[[Function], Function]:
    """Return a decorator that gives a function the globals of another module."""

    def place(maker: UserObject) -> Function:
        return FunctionType(maker.__code__, vars(module), maker.__name__)

    return place


def as_function(target: Callable[..., object], module: str, name: str) -> Function:
    """Return a function that calls an object and has its signature, with this module and name."""

    @functools.wraps(target, updated=())
    def call(*args: object, **named: object) -> object:
        return target(*args, **named)

    call.__module__, call.__qualname__, call.__name__ = module, name, name
    return call


def home_of(trainable: object) -> str:
    """Return the name of a trainable's original module, on the driver and after a rebuild."""
    inner: UserObject = trainable
    while hasattr(inner, "__wrapped__") or isinstance(inner, functools.partial):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__wrapped__
    return str(inner.__module__)
