"""Drivers' journals in a real Redis through weeks of reports: what mqtune reads, copies, writes into a store and trims, without trials."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measurement import Context, Figures
from benchmarks.work.retention import FLEETS

if TYPE_CHECKING:
    from mqtune.driver.trimming import Trimmer
    from mqtune.journal.copy import JournalReader
    from mqtune.journal.redis import RedisJournal

__all__ = ["measure"]

_LEASE_S: Final = 1e6
#: How many minutes of reports are written before drivers read: their timers run each five seconds, so that they have read by then.
_MINUTES: Final = 10
#: The longest that a driver's thread may take for what came in these minutes.
_WRITTEN_S: Final = 60.0
#: As the script that journals reports does it, an entry for each: they come one by one at such a pace.
_APPEND: Final = """
for i = 1, tonumber(ARGV[2]) do
  local id = redis.call('XADD', KEYS[1], '*', 'e', ARGV[1])
  redis.call('HSET', KEYS[2], 'last', id, 'bytes', (redis.call('HGET', KEYS[2], 'bytes') or 0) + #ARGV[1])
end
"""


def measure(context: Context) -> Figures:
    """Measure the memory of Redis while its slots report each minute, for one experiment and for a hundred."""
    from mqtune.backends.local.server import EmbeddedServer
    from mqtune.journal.connection import connect

    figures: Figures = {}
    for name, count in FLEETS.items():
        folder = context.folder / name
        folder.mkdir()
        with EmbeddedServer.start(folder) as server, contextlib.closing(connect(server.url)) as client:
            # A file that grows by gigabytes is not what is measured.
            client.config_set("appendonly", "no")
            before = _used_mb(client)
            experiments = [_Driven(client, f"x{number}", folder) for number in range(count)]
            samples = []
            for _ in range(0, context.sizes["minutes"], _MINUTES):
                for each in experiments:
                    each.report(context.sizes["slots"] // count * _MINUTES)
                    # Each has its own five seconds.
                    samples.append(_used_mb(client) - before)
                    each.look()
            figures[f"{name}_peak_mb"] = max(samples)
            figures[f"{name}_half_mb"] = max(samples[: len(samples) // 2])
            figures[f"{name}_store_mb"] = sum(each.check() for each in experiments) / 1e6
        shutil.rmtree(folder)
    return figures


def _used_mb(client: Any) -> float:
    return float(client.info("memory")["used_memory"] / 1e6)


class _Driven:
    """An experiment with what its driver has to do with its journal, and no trial."""

    def __init__(self, client: Any, name: str, folder: Path) -> None:
        from mqtune.checkpoints.directory import DirectoryStore
        from mqtune.core.codec import encode_value
        from mqtune.core.events import ExperimentCreated
        from mqtune.driver.trimming import Trimmer
        from mqtune.journal.copy import JOURNAL_FILE, JournalFile, JournalReader
        from mqtune.journal.redis import RedisJournal
        from mqtune.journal.restore import Restorer

        self._client = client
        store = DirectoryStore(folder / "store" / name)
        store.create()
        self.journal: RedisJournal = RedisJournal(client, name)
        self.journal.chapter_store = store
        self.journal.most_bytes = 10**9
        self.journal.lock("benchmark", "benchmark", _LEASE_S)
        created = ExperimentCreated(name=name, definition={"store": store.url}, at=1.0)
        self.journal.record(created.encode(), definition=encode_value(created.definition))
        home = folder / "home" / name
        home.mkdir(parents=True)
        copy = JournalFile(home / JOURNAL_FILE)
        self._reader: JournalReader = JournalReader(self.journal, copy)
        self._trimmer: Trimmer = Trimmer(Restorer(self.journal, self._reader, copy, time), copy.path, time)
        self._reader.catch_up()
        self._written = 1
        self._event = _report()

    def report(self, count: int) -> None:
        """Append so many reports."""
        keys = self.journal._keys
        while count:
            some = min(count, 5_000)
            self._client.eval(_APPEND, 2, keys.journal, keys.meta, self._event, some)
            self._written += some
            count -= some

    def look(self) -> None:
        """Do what a driver does within these minutes: read, copy, keep the lock, and trim until there is nothing to trim."""
        while entries := self.journal.read(self._reader.last, count=self._reader.count):
            self._reader.keep(entries)
        deadline = time.monotonic() + _WRITTEN_S
        chapters = -1
        while chapters != (chapters := len(self.journal.chapters())):
            self.journal.lock("benchmark", "", _LEASE_S)
            self._trimmer.look()
            while self._trimmer.is_busy:
                if time.monotonic() > deadline:
                    raise RuntimeError("chapters are not written as fast as reports come")
                time.sleep(0.001)
            self._trimmer.look()

    def check(self) -> int:
        """Check that there is each entry, and return how many bytes the store has."""
        if self.journal.count() != self._written:
            raise RuntimeError(f"{self.journal.count()} of {self._written} entries are there")
        self._trimmer.close()
        self._reader.close()
        return sum(chapter.size for chapter in self.journal.chapters())


def _report() -> bytes:
    from mqtune.core.codec import REPORTS_PREFIX, pack_metrics, segment_bytes

    metrics = {"loss": 0.1234, "accuracy": 0.8765, "training_iteration": 1234}
    segment = segment_bytes("0001", 1, 1234, [pack_metrics(1.7e9, metrics)])
    return REPORTS_PREFIX + b"\xdd" + (1).to_bytes(4, "big") + segment
