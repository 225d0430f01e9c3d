"""What a trial has changed in its process, as the process sees it, without a trial."""

from __future__ import annotations

import subprocess
import sys

ENVIRONMENT = """
import os
from mqtune.trainable.process.surroundings import Surroundings

os.environ.update(KEPT="1", CHANGED="1", LEFT_OUT="1")
found = Surroundings()
assert found.changes() == ""
os.environ["KEPT"] = "1"
os.environ["CHANGED"] = "2"
os.environ["NEW\\udcff"] = "1"
os.environ["CUDA_MODULE_LOADING"] = "LAZY"
del os.environ["LEFT_OUT"]
print(found.changes())
"""

REPLACED = """
import os
from mqtune.trainable.process.surroundings import Surroundings

found = Surroundings()
os.environ = dict(os.environ)
assert found.changes() == ""
os.environ["NEW"] = "1"
print(found.changes())
"""

HANDLERS = """
import signal
from mqtune.trainable.process.surroundings import Surroundings

signal.signal(signal.SIGTERM, signal.SIG_DFL)
found = Surroundings()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
assert found.changes() == ""
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print(found.changes())
"""


def said(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_each_variable_with_another_value_is_named_but_for_those_of_libraries() -> None:
    assert said(ENVIRONMENT) == r"it has changed the environment's CHANGED, LEFT_OUT, NEW\udcff"


def test_an_environment_that_was_replaced_counts_by_its_content() -> None:
    assert said(REPLACED) == "it has changed the environment's NEW"


def test_handlers_of_signals_are_named() -> None:
    assert said(HANDLERS) == "it has changed the handlers of SIGHUP, SIGTERM"
