"""A trainable of a session without a file becomes a module, with what it uses, or an error says what can't travel."""

from __future__ import annotations

import importlib.util
import linecache
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench import writer_of
from cells import run_cells

from mqtune.core.errors import ConfigurationError, TrainableNotFound
from mqtune.trainable import TrainableSpec, cell_of

Session = Callable[..., ModuleType]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """Runs cells as a notebook does, and returns its ``__main__``."""
    return partial(run_cells, monkeypatch)


def written(trainable: object, folder: Path) -> Any:
    """The trainable as a worker finds it: in a module, in a process that knows nothing of the session."""
    cell = cell_of(trainable)
    assert cell is not None
    assert cell == cell_of(trainable)
    for name, content in cell.values.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / cell.file).write_bytes(cell.source)
    spec = importlib.util.spec_from_file_location(cell.spec.module, folder / cell.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, cell.spec.name)


def test_a_function_brings_what_it_uses_and_no_more(session: Session, tmp_path: Path):
    main = session(
        """
import json, os.path as paths, collections.abc
import numpy as np
from math import sqrt as root, inf
from pathlib import Path
from functools import lru_cache
LAYERS = {"widths": [1, 2.5], "name": ("a", b"b", None, True), "none": set()}
NOTHING, FAR, DATA, unused = set(), inf, Path("data") / "x.csv", object()
""",
        """
double = lambda x: 2 * x

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

@lru_cache
def cached(n): return n

class Net:
    '''A class that the function uses.'''
    width: int = len(LAYERS["widths"])
    def size(self): return self.width

class Deep(Net):
    @property
    def depth(self): return 3
""",
        """
scale = 10
def train(config, factor=scale):
    unused = 1
    def inner():
        return double(config["x"]) * factor
    assert not NOTHING and FAR > 1e300 and str(DATA) == paths.join("data", "x.csv")
    assert isinstance({}, collections.abc.Mapping) and json.loads("1") == unused
    return {"loss": inner() + root(np.float64(4)), "even": even(4), "n": cached(3), "net": Net().size() + Deep().depth}
""",
    )
    train = written(main.train, tmp_path)
    assert train({"x": 1}) == main.train({"x": 1}) == {"loss": 22, "even": True, "n": 3, "net": 5}
    source = (tmp_path / "train_cell.py").read_text()
    assert "object()" not in source
    assert "import collections.abc" in source


def test_each_part_of_an_object_that_can_not_travel_is_named(session: Session):
    main = session(
        "import threading, functools, queue\n",
        """
class Slotted:
    __slots__ = ("x",)

class Stateful:
    def __getstate__(self): return {}

class Holder:
    def __init__(self):
        self.parts = {"lock": threading.Lock(), "fine": 1}
        self.slotted, self.own, self.me = Slotted(), Stateful(), [self]
        self.loop = []
        self.loop.append(self.loop)
    def train(self, config): ...

def closure():
    def train(config): return later
    made = train
    later = 1
    del later
    return made

def base(config, queue, more): ...
""",
        """
method, empty = Holder().train, closure()
partial = functools.partial(base, queue=queue.SimpleQueue(), more=[open])
""",
    )

    def said(trainable: object) -> str:
        with pytest.raises(TrainableNotFound) as error:
            cell_of(trainable)
        return str(error.value)

    assert (
        "self.parts['lock'], a lock, which is not a plain value; self.slotted, a Slotted, whose class has __slots__: x; "
        "self.own, a Stateful, whose class has its own way to be copied; self.loop[0], a list that refers to itself. "
        "Load it inside the function, or put it into a file"
    ) in said(main.method)
    assert "train, a function that uses later, a variable without a value" in said(main.empty)
    assert "queue, a SimpleQueue, which is not a plain value" in said(main.partial)
    assert "more" not in said(main.partial)


def test_what_is_in_a_file_or_has_no_source_is_no_cells(session: Session):
    assert cell_of(test_what_is_in_a_file_or_has_no_source_is_no_cells) is None
    main = session("def train(config): ...")
    linecache.clearcache()
    assert cell_of(main.train) is None
    with pytest.raises(TrainableNotFound, match=r"is in no file .*%%writefile"):
        TrainableSpec.of(main.train)


def test_its_imports_of_own_modules_go_with_it(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_the_notebook.py").write_text("import of_that_module\n")
    (tmp_path / "of_that_module.py").write_text("X = 1\n")
    (tmp_path / "other.py").touch()
    main = session("import of_the_notebook\ndef train(config): return of_the_notebook.of_that_module.X\n")

    def packed(**options: Any) -> set[str]:
        writer = writer_of(main.train, {"x": 1}, backend="redis://h", **options)
        writer.read_code()
        assert writer.bundle is not None
        return {*writer.bundle.files()}

    assert packed() == {"train_cell.py", "of_the_notebook.py", "of_that_module.py"}
    assert packed(bundle=tmp_path) == packed() | {"other.py"}
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ConfigurationError, match=r"has no .*train_cell.py"):
        packed(bundle=tmp_path / "elsewhere")
