"""A trainable without a name in a file is written by a driver's script, and rebuilt by a worker that has the script's file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

#: Writes each of its trainables, once for each time that it is run, to a folder of its own.
PROGRAM = """
import argparse, enum, functools, logging, sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import library
from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.cells import cell_of

SCALE = 10
args = None
_cache = None


class Mode(enum.Enum):
    FAST = "fast"


class Point(NamedTuple):
    x: int


@dataclass
class Settings:
    shift: float
    names: set[str]


def negated(method):
    @functools.wraps(method)
    def wrapper(self, config):
        return -method(self, config)

    return wrapper


class Manager:
    def __init__(self, shift):
        self.settings, self.mode, self.itself = Settings(shift, {"b", "a", "c"}), Mode.FAST, self
        self.log, self.point = logging.getLogger("manager"), Point(3)

    def train(self, config):
        assert self.itself is self and self.mode is Mode.FAST and self.point == Point(3) and self.log.name == "manager"
        return config["x"] + self.settings.shift + len(self.settings.names)

    aliased = negated(train)

    def __hidden(self, config):
        return config["x"] + 7

    def hidden(self):
        return self.__hidden

    def inside(self):
        return lambda config: self.train(config)


def base(config, shift=0.0, more=()):
    return config["x"] + shift + sum(more)


def closure(shift):
    factor = 2

    def helper(value):
        return value * factor

    def train(config):
        "It calls another closure, a name of the script and itself."
        if config["x"] > 1:
            return train({"x": config["x"] - 1})
        return helper(config["x"]) + shift + SCALE

    return train


def decorated(function):
    @functools.wraps(function)
    def wrapper(config):
        return -function(config)

    return wrapper


def uses_main_block(config):
    return args.shift + config["x"] + inner({"x": 1})


def cached(config):
    global _cache
    _cache = (_cache or 0) + 1
    return _cache


def fill_cache():
    global _cache
    _cache = object()


def write(name, trainable):
    cell = cell_of(trainable)
    folder = Path(sys.argv[1], name)
    for path, content in {cell.file: cell.source, **cell.values}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    for path in (cell.script, "library.py"):
        if path:
            (folder / path).write_bytes((cell.code_root / path).read_bytes())
    (folder / "name").write_text(cell.spec.module + ":" + cell.spec.name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--shift", type=int)
    args = parser.parse_args(["--shift", "5"])
    fill_cache()

    def inner(config):
        return SCALE * config["x"]

    functions = [lambda config, by=by: base(config, by) for by in (1, 2)]
    write("lambda", lambda config: base(config, 0.5))
    write("second_of_a_loop", functions[1])
    write("closure", closure(0.5))
    write("partial", functools.partial(base, shift=float("inf"), more=[1, 2]))
    write("method", Manager(0.5).train)
    write("aliased_method", Manager(0.5).aliased)
    write("hidden_method", Manager(0.5).hidden())
    write("lambda_over_self", Manager(1).inside())
    write("decorated", decorated(closure(0.5)))
    write("with_main_block", lambda config: uses_main_block(config))
    write("with_a_cache", lambda config: cached(config))
    write("of_a_module", library.closure(0.5))
"""
LIBRARY = """
OFFSET = 100


def add(shift, config):
    return config["x"] + shift + OFFSET


def closure(shift):
    return lambda config: add(shift, config)
"""
LOADER = """
import json, sys
from pathlib import Path
from mqtune.trainable.spec import TrainableSpec, extras_of

found = {}
for folder in Path(sys.argv[1]).iterdir():
    module, _, name = (folder / "name").read_text().partition(":")
    train = TrainableSpec(name, module=module).load(folder)
    assert extras_of(train) == ()
    found[folder.name] = [train({"x": 1}), name]
    for module in (module, "library"):
        sys.modules.pop(module, None)
print(json.dumps(found))
"""
#: The value of each for the config {"x": 1}, and its name.
EXPECTED = {
    "lambda": [1.5, "trainable"],
    "second_of_a_loop": [3, "trainable"],
    "closure": [12.5, "train"],
    "partial": [float("inf"), "base"],
    "with_a_cache": [1, "trainable"],
    "method": [4.5, "train"],
    "aliased_method": [-4.5, "train"],
    "hidden_method": [8, "__hidden"],
    "lambda_over_self": [5, "trainable"],
    "decorated": [-12.5, "train"],
    "with_main_block": [16, "trainable"],
    "of_a_module": [101.5, "trainable"],
}


def test_it_gives_on_a_worker_what_it_gives_in_the_script_which_writes_the_same_bytes_again(tmp_path: Path) -> None:
    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout

    for name, source in {"program": PROGRAM, "library": LIBRARY, "loader": LOADER}.items():
        # Python reads a file in the encoding that its first line names.
        (tmp_path / f"{name}.py").write_text(f"# coding: latin-1\nLETTER = 'é'\n{source}", encoding="latin-1")
    tops = [tmp_path / number for number in ("1", "2")]
    for top in tops:
        run("program.py", top.name)

    assert json.loads(run("loader.py", "1")) == EXPECTED
    first, second = ({path.relative_to(top): path.read_bytes() for path in top.rglob("*.py")} for top in tops)
    assert first == second
    assert len(first) > len(EXPECTED)
