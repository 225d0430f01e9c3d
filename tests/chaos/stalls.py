"""How much a run was held up by the machine that it runs on."""

from __future__ import annotations

import threading
import time
from typing import Self


class Stalls:
    """How late a thread wakes up at worst: where that is seconds, a lease may run out by the machine's fault."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.05):
            now = time.monotonic()
            self.worst_s = max(self.worst_s, now - last - 0.05)
            last = now
