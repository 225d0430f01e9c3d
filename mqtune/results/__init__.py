"""Results: what has become of experiments, read from their journals; tables, pictures and other schedulers over recorded curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import found_when_used

if TYPE_CHECKING:
    from mqtune.results.whatif import Replay

__all__ = ["Replay"]

__getattr__ = found_when_used(__name__, {"Replay": "mqtune.results.whatif"})
