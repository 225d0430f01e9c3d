"""Whatever is appended, leaves the server and is lost, in any order: readers meet each entry once, in its order."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis
from contract.journals.world import LONG_S, MemoryWorld, RedisWorld, closed
from hypothesis import HealthCheck, given, settings, strategies as st

from mqtune.checkpoints import open_store
from mqtune.core.codec import encode_value
from mqtune.core.events import START
from mqtune.journal import Entry, Journal, JournalFile, cut_chapters, keep_chapter

#: An entry that is no event, as anybody with an account may append one, and one that is larger than a chapter.
HOSTILE = [b"", b"\xc1", bytes(5_000)]
SIZES = st.sampled_from([1, 60, 150, 400])
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 12)),
    st.tuples(st.just("hostile"), st.sampled_from(HOSTILE)),
    st.tuples(st.just("trim"), st.integers(1, 3)),
    st.tuples(st.just("read"), st.integers(1, 9)),
    st.tuples(st.just("new reader"), st.integers(1, 9)),
    st.tuples(st.just("keep in mind"), st.none()),
    st.tuples(st.just("set back"), st.none()),
)


class Reader:
    """Reads on, a page at a time, while entries come and leave."""

    def __init__(self, journal: Journal, page: int) -> None:
        self.journal, self.page = journal, page
        self.found: list[Entry] = []

    def read(self) -> bool:
        after = self.found[-1].id if self.found else START.entry
        page = self.journal.read(after, count=self.page)
        self.found += page
        return len(page) == self.page


class Course:
    """What happens to one journal, beside a list of what it should have."""

    def __init__(self, world: Any, folder: Path, size: int) -> None:
        self.world, self.size, self.path = world, size, folder / "copy.msgpack"
        self.store = open_store(str(folder / "store"))
        self.store.create()
        self.driver: Journal = world.journal()
        self.driver.lock("driver", "", LONG_S)
        self.driver.record(closed(), definition=encode_value({"store": self.store.url}))
        self.written = 0
        self.entries = self.driver.read(START.entry, count=10)
        self.readers = [Reader(world.journal(), 4)]
        self.kept: Any = None

    def take(self, what: str, how: Any) -> None:
        match what:
            case "append":
                self._append([closed(f"{self.written + number}") for number in range(how)])
            case "hostile":
                self._append([how])
            case "trim":
                self._trim(how)
            case "read":
                self.readers[how % len(self.readers)].read()
            case "new reader":
                self.readers.append(Reader(self.world.journal(), how))
            case "keep in mind":
                # Only the order of these two matters: what a server has lost since, a driver would put back.
                self.kept = len(self.entries), self.world.snapshot()
            case "set back" if self.kept is not None and self.kept[0] == len(self.entries):
                # To before some entries have left.
                self.world.set_back(self.kept[1])

    def _append(self, events: list[bytes]) -> None:
        for event in events:
            self.driver.record(event)
            self.written += 1
        self.entries += self.driver.read(self.entries[-1].id, count=1_000)

    def _trim(self, count: int) -> None:
        with closing(JournalFile(self.path)) as copy:
            copy.begin(self.entries)
        chapters = self.driver.chapters()
        last = chapters[-1].last if chapters else ""
        left = [cut for cut in cut_chapters(self.path, 0, self.size) if _order(cut.chapter.first) > _order(last)]
        for cut in left[:count]:
            keep_chapter(self.store, cut)
            left = self.driver.trim(cut.chapter, last)
            assert (left is not None) == (cut.chapter.last != self.entries[-1].id)
            last = cut.chapter.last

    def check(self) -> None:
        for reader in [*self.readers, Reader(self.driver, 5), Reader(self.world.journal(), 1_000)]:
            while reader.read():
                pass
            assert reader.found == self.entries
        assert self.driver.first() == self.entries[0]
        assert all(self.driver.holds(entry.id) for entry in self.entries[:: max(1, len(self.entries) // 8)])


def _order(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-"))) if entry else (0,)


@pytest.mark.parametrize("where", ["memory", "redis"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=25), size=SIZES)
def test_readers_meet_each_entry_once_whatever_leaves_the_server(
    where: str, redis_client: redis.Redis, steps: list[tuple[str, Any]], size: int
) -> None:
    redis_client.flushdb()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        course = Course(MemoryWorld() if where == "memory" else RedisWorld(redis_client), folder, size)
        for step in steps:
            course.take(*step)
        course.check()
