"""A worker with driver slots alone, as a broker's submissions know it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from mqtune.core.owner import NOBODY
from mqtune.core.submission import Submission
from mqtune.core.timing import Timing
from mqtune.journal import RedisClient
from mqtune.services.submissions.board import Submissions
from mqtune.services.submissions.driver_slots import DriverSlots
from mqtune.trainable import Bundle, File
from mqtune.worker import Impairments

KEY: Final = "the key of the code"


class DriverHost:
    """A worker with driver slots, and its impairments."""

    def __init__(
        self,
        client: RedisClient,
        folder: Path,
        *,
        name: str = "w@h",
        slots: int = 1,
        url: str = "",
        timing: Timing = Timing(),
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.impairments = Impairments(lambda: None, worker=name)
        self.there = Submissions(client, patience_s=math.inf)
        scratch: Any = SimpleNamespace(folder=lambda run, _: folder / run, remove=lambda _: None)
        logs: Any = SimpleNamespace(
            files=lambda *_: (folder / "log", folder / "log"), begin=lambda _: None, end=lambda *_: ""
        )
        self.slots = DriverSlots(
            self.there,
            slots=slots,
            worker=name,
            experiments="*",
            broker=url,
            key=KEY,
            logs=lambda: logs,
            scratch=scratch,
            impairments=self.impairments,
            timing=timing,
        )
        self.slots.start()

    def submit(self, name: str, code: str = "import time; time.sleep(600)") -> None:
        """Submit a script, which any worker may take."""
        bundle = Bundle.of({"script.py": File(code.encode())})
        self.there.submit(Submission(name, "script.py", (), bundle.digest, NOBODY, 1.0), bundle, KEY)

    def close(self) -> None:
        """Give back what it runs."""
        self.slots.close()
