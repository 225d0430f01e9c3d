"""``mqtune demo``: runs a real experiment on this machine."""

from __future__ import annotations

import contextlib
import os
import re
from importlib.util import find_spec
from typing import Final

import click

from mqtune.core.errors import MqtuneError
from mqtune.core.machine import SERVER_FOLDER
from mqtune.core.version import install_command

_NEEDS: Final = {"numpy": "numpy", "sklearn": "scikit-learn"}
_STEM: Final = "demo"


@click.command("demo")
@click.option("--name", help="Name of the experiment. By default an interrupted demo continues, or a new one begins.")
def command(name: str | None) -> None:
    """Tune a small neural network on handwritten digits, on this machine.

    150 trials with ASHA take about 20 seconds on two free cores, and a minute on a slow machine. After Ctrl-C, the
    same command continues. Start from its script: mqtune/cli/digits.py.
    """
    missing = [package for module, package in _NEEDS.items() if find_spec(module) is None]
    if missing:
        raise MqtuneError(f"the demo needs {' and '.join(missing)}: {install_command('demo')}")
    from mqtune.cli.digits import main  # noqa: PLC0415 - scikit-learn's import takes a second

    main(name or _interrupted_demo() or _new_demo())


def _interrupted_demo() -> str | None:
    """Return the name of this machine's newest demo if it is unfinished and has no driver."""
    from mqtune.journal.files.copy import JOURNAL_FILE, is_written  # noqa: PLC0415 - --help needs none of it
    from mqtune.results.experiments import saved_experiments  # noqa: PLC0415
    from mqtune.results.results import Results  # noqa: PLC0415

    if os.environ.get("MQTUNE_BROKER"):
        return None
    # Only experiments that ran on this machine alone have a server's folder.
    demos = (
        folder
        for folder in saved_experiments()
        if re.fullmatch(rf"{_STEM}-\d+", folder.name) and (folder / SERVER_FOLDER).is_dir()
    )
    newest = next(demos, None)
    if newest is not None and not is_written(newest / JOURNAL_FILE):
        # If the demo can't be loaded, as its journal is still empty, a new one begins.
        with contextlib.suppress(MqtuneError):
            return None if Results.load(newest).outcome == "finished" else newest.name
    return None


def _new_demo() -> str:
    from mqtune.driver.setup.deployments import deployment_of  # noqa: PLC0415 - as above

    return deployment_of(None).new_name(_STEM)
