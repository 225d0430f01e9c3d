"""A slot without a worker: a zygote whose processes are reused, and the attempts that they run."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import Any

import pytest
from attempts import Worker, forked, gone, import_key
from waiting import DEADLINE_S

from mqtune.services.reuse.worker import reusing
from mqtune.trainable import TrainableSpec
from mqtune.worker import ImporterHandle


class Slot:
    """A zygote, and the attempts that it runs one after the other, as a worker has them.

    Args:
        folder: for all files.
        start_method: "fork" or "spawn".
        spec: the trainable, in a module.
        code: the content of that module's file.
        program: more of its program.
    """

    def __init__(self, folder: Path, start_method: str, spec: TrainableSpec, code: str, **program: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.code = folder / "code"
        self.code.mkdir()
        (self.code / f"{spec.module}.py").write_text(code)
        (self.code / "imported_late.py").write_text("")
        key = reusing(import_key(spec, self.code, start_method, **program), b"")
        self.importer = ImporterHandle(key, {}, folder / "zygote.log")
        self.zygote = forked(self.importer, folder)
        self.attempts: list[Attempt] = []
        self.is_closed = False

    def start(self, *, message: dict[str, Any] | None = None, **config: Any) -> Attempt:
        self.attempts.append(Attempt(self, f"t{len(self.attempts) + 1}", message or {}, config))
        return self.attempts[-1]

    def run(self, **config: Any) -> Attempt:
        """Run a trial to its end."""
        return self.start(**config).ended()

    def log(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def end(self) -> None:
        """End the zygote."""
        if not self.is_closed:
            self.is_closed = True
            self.importer.close()

    def close(self) -> None:
        self.end()
        for one in self.attempts:
            one.close()


class Attempt(Worker):
    """One of its attempts."""

    def __init__(self, slot: Slot, trial: str, message: dict[str, Any], config: dict[str, Any]) -> None:
        folder = slot.folder / trial
        folder.mkdir()
        super().__init__(folder, trial=trial, **message)
        whole = {"lr": 1, "steps": 1, "log": str(slot.folder), **config}
        slot.zygote.send_start({**self.message, "config": whole}, [self.write_end, self.control_end])
        os.close(self.write_end)
        os.close(self.control_end)
        self.zygote = slot.zygote
        self.pid = self.zygote.wait_started()
        self.pids = [self.pid]
        self.status: int | None = None

    def tell(self, kind: bytes) -> None:
        self.write(kind)
        self.zygote.tell(self.pid)

    def hear(self, what: str) -> None:
        """Wait until the zygote has something to say, and take what the trial sends, which waits while its pipe is full."""
        deadline, sends = time.monotonic() + DEADLINE_S, True
        while time.monotonic() < deadline:
            sources = [self.zygote.fileno(), *([self._reports] if sends else [])]
            found = select.select(sources, [], [], max(0.0, deadline - time.monotonic()))[0]
            if self._reports in found:
                sends = self.read()
            if self.zygote.fileno() in found:
                return
        pytest.fail(f"{what}: {self.errors()}")

    def passed_on(self) -> Attempt:
        """Wait until a fresh process has the trial."""
        self.hear("never passed on")
        assert gone(self.zygote).again
        self.pid = self.zygote.wait_started()
        self.pids.append(self.pid)
        return self

    def ended(self) -> Attempt:
        while self.status is None:
            self.hear("never ended")
            found = gone(self.zygote)
            self.status = found.status
            if found.again:
                self.pid = self.zygote.wait_started()
                self.pids.append(self.pid)
        return self

    def errors(self) -> str:
        file = Path(self.message["stderr"])
        return file.read_text() if file.exists() else ""

    def output(self) -> str:
        return Path(self.message["stdout"]).read_text()

    def close(self) -> None:
        # The numbers of the other two may be another attempt's by now.
        os.close(self._reports)
        os.close(self._control)
