"""What a trial has changed in its process, as the process sees it and puts it back, without a trial."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BEGIN = """
import os
from mqtune.trainable.process.surroundings import Surroundings
"""
ENVIRONMENT = """
os.environ.update(KEPT="1", CHANGED="1", LEFT_OUT="1")
before, found = dict(os.environ), Surroundings()
assert found.put_back() == ""
os.environ["KEPT"] = "1"
os.environ["CHANGED"] = "2"
os.environ["NEW\\udcff"] = "1"
del os.environ["LEFT_OUT"]
print(found.put_back(), os.environ == before, os.system("test $CHANGED$LEFT_OUT = 11"))
"""
#: As a library that is imported by its first trial, whose threads between operators can be set once.
LIBRARY = """
found = Surroundings()
import torch
torch.set_default_dtype("half")
torch.set_num_threads(7)
print(found.put_back(), torch.get_default_dtype(), torch.get_num_threads())
torch.set_num_interop_threads(1)
print(found.put_back())
"""
TORCH = """
values = {"default_dtype": "float", "num_threads": 2, "num_interop_threads": 2}

def __getattr__(name):
    what, _, setting = name.partition("_")
    if setting not in values:
        raise AttributeError(name)
    return (lambda: values[setting]) if what == "get" else lambda value: values.update({setting: value})

def set_num_interop_threads(value):
    if values["num_interop_threads"] != 2:
        raise RuntimeError("it can be set once")
    values["num_interop_threads"] = value
"""


def said(script: str, folder: Path) -> str:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{BEGIN}{script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_each_variable_gets_back_its_value_for_children_too(tmp_path: Path) -> None:
    assert said(ENVIRONMENT, tmp_path) == "True 0"


def test_settings_of_a_library_are_put_back_to_those_behind_its_import_or_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(TORCH)

    assert said(LIBRARY, tmp_path).splitlines() == [
        "float 2",
        "it has changed the settings torch.get_num_interop_threads",
    ]
