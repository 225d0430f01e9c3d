"""The causes of waiting that submitted scripts add to ``mqtune why``."""

from __future__ import annotations

from typing import Final

from mqtune.core.cause import Cause
from mqtune.core.submission import DRIVER
from mqtune.trainable import KEY_VARIABLE

CAUSES: Final = {
    "no driver slot": Cause(
        "No worker has a driver slot for the submitted script.", "start one: mqtune worker --drivers 4"
    ),
    "refused": Cause(
        "No worker accepts the signature of the submitted script.",
        f"end it: mqtune end {{NAME}}; then submit it with the {KEY_VARIABLE} of a worker with driver slots",
    ),
    "script": Cause(
        "The submitted script has failed, or has not begun its experiment.",
        f"see its output: mqtune logs {{NAME}} {DRIVER}",
    ),
}
