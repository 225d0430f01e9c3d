"""Runs a function for Syne Tune's ``PythonBackend`` as a trainable."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from mqtune import report
from mqtune.extend import Config, ConfigurationError, adapter, install_command

try:
    from syne_tune import Reporter
    from syne_tune.util import dump_json_with_numpy
except ImportError as error:  # pragma: no cover - the tests are skipped without it
    raise ConfigurationError(f"Syne Tune can't be imported ({error}); {install_command('syne-tune')}") from error

ADAPTER: Final = f"{__name__}:as_trainable"


@adapter
def as_trainable(tune_function: Callable[..., object]) -> Callable[[Config], None]:
    """Wrap a function that takes keywords and reports by ``Reporter`` as a trainable."""
    # This affects only this trainable's process, where nobody reads printed reports.
    Reporter.__call__ = _report

    def run(config: Config) -> None:
        tune_function(**config)

    run.__name__ = tune_function.__name__
    return run


def _report(_: Reporter, **metrics: object) -> None:
    report(json.loads(dump_json_with_numpy(metrics)))
