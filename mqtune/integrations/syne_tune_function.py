"""Runs a function for Syne Tune's ``PythonBackend`` as a trainable."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from mqtune import report
from mqtune.extend import Config, adapter, importing

with importing("Syne Tune", "syne-tune"):
    from syne_tune import Reporter
    from syne_tune.util import dump_json_with_numpy

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
