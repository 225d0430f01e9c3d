"""A function that is written for Syne Tune's ``PythonBackend``, as a trainable; needs the extra ``syne-tune``."""

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

#: Where a spec has this adapter.
ADAPTER: Final = f"{__name__}:as_trainable"


@adapter
def as_trainable(tune_function: Callable[..., object]) -> Callable[[Config], None]:
    """Return a function of keywords as a function of a config; what it reports by Syne Tune's ``Reporter`` is reported."""
    # In a worker's process for this trainable alone, where nobody reads its printed lines.
    Reporter.__call__ = _report

    def run(config: Config) -> None:
        tune_function(**config)

    run.__name__ = tune_function.__name__
    return run


def _report(_: Reporter, **metrics: object) -> None:
    report(json.loads(dump_json_with_numpy(metrics)))
