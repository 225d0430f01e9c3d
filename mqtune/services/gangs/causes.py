"""The causes of waiting that trials with several seats add to ``mqtune why``."""

from __future__ import annotations

from typing import Final

from mqtune.core.cause import Cause

CAUSES: Final = {"seats": Cause("Workers have reserved only some slots of a trial over several machines.")}
