"""The examples of docs/adapters.md, whose trial is killed in its first attempt."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import mqtune
from mqtune.integrations.in_trials import CallbackReports

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()


class Killed(CallbackReports):
    """Reports whose third one never comes, as the process is gone."""

    def make(self, *arguments: Any) -> None:
        if mqtune.get_context().attempt == 1 and self._made == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        super().make(*arguments)


def train(config: dict[str, Any]) -> None:
    # Keras's default is TensorFlow, which is not here.
    os.environ.setdefault("KERAS_BACKEND", "torch")
    module = __import__(f"mqtune.integrations.{config['library']}", fromlist=["CallbackReports"])
    module.CallbackReports = Killed
    _, _, rest = PAGE.partition(f"\n## {config['title']}\n")
    (block,) = re.findall(r"^```python\n(.*?)^```", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "training"}
    exec(block, names)
    names["train"](config)
