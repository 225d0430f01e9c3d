"""``mqtune demo``: runs a real experiment on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import click

from mqtune.core.errors import MqtuneError
from mqtune.core.version import install_command

_NEEDS: Final = {"numpy": "numpy", "sklearn": "scikit-learn"}


@click.command("demo")
@click.option("--name", help="Name of the experiment. An interrupted demo of this name continues.")
def command(name: str | None) -> None:
    """Tune a small neural network on handwritten digits, on this machine.

    150 trials with ASHA take about ten seconds on two free cores, and a minute on a slow machine. Start from its
    script: mqtune/cli/digits.py.
    """
    missing = [package for module, package in _NEEDS.items() if find_spec(module) is None]
    if missing:
        raise MqtuneError(f"the demo needs {' and '.join(missing)}: {install_command('demo')}")
    from mqtune.cli.digits import main  # noqa: PLC0415 - scikit-learn's import takes a second

    main(name)
