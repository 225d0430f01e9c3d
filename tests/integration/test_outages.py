"""A journal whose server is cut off, silent, or comes back without what it had: real sockets, a real server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    LONG_S,
    ONE,
    InWorld,
    closed,
    ended,
    entries,
    reported,
    segment,
    staged,
    started,
)
from faulty_proxy import FaultyProxy
from restartable import RestartableRedis
from waiting import DEADLINE_S, eventually

from mqtune.core.codec import encode_value
from mqtune.core.errors import BrokerUnavailable, JournalGone
from mqtune.core.events import START, AttemptEnded, ExperimentCreated, decode_event
from mqtune.core.keys import ExperimentKeys
from mqtune.core.trial import FORGOTTEN, TrialId
from mqtune.journal.base import FENCED, GAP, Claim, Order
from mqtune.journal.connection import open_client
from mqtune.journal.copy import JOURNAL_FILE, JournalFile
from mqtune.journal.fleet import ControlChannel
from mqtune.journal.redis import UPLOAD_COUNT, RedisJournal
from mqtune.journal.restore import bring_back, put_back

#: How long a command here may take before its connection counts as dead.
TIMEOUT_S = 0.3
DEFINITION = {"metric": "loss", "mode": "min", "max_failures": 0}
CREATED = ExperimentCreated(name="x", definition=DEFINITION, at=1.0).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableRedis]:
    with RestartableRedis(tmp_path_factory.mktemp("outages")) as server:
        yield server


@pytest.fixture
def line(server: RestartableRedis) -> Iterator[FaultyProxy]:
    server.client.flushall()
    with FaultyProxy(server.url) as line:
        yield line


@pytest.fixture
def journal(line: FaultyProxy) -> Iterator[RedisJournal]:
    """The journal as its driver has it, over a line that fails when a test says so."""
    client = open_client(line.url, connect_timeout_s=TIMEOUT_S, command_timeout_s=TIMEOUT_S)
    with contextlib.closing(client):
        journal = RedisJournal(client, "x")
        journal.lock("driver-1", "process 1 on head", LONG_S)
        yield journal


def during(fault: Callable[[], object], end: Callable[[], object], call: Callable[[], object]) -> object:
    """Call while there is a fault, which ends when the caller has seen something of it."""
    answers: list[object] = []
    fault()
    caller = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    caller.start()
    caller.join(2 * TIMEOUT_S)
    assert caller.is_alive(), "the fault made no difference"
    end()
    caller.join(DEADLINE_S)
    assert answers, "the call did not come back"
    return answers[0]


# Cut off.


def test_what_is_written_over_a_line_that_says_nothing_is_written_once(
    line: FaultyProxy, journal: RedisJournal
) -> None:
    """The first try reaches the server when the line works again, and so do those that followed."""
    during(line.hold, line.release, lambda: journal.record(closed()))

    assert [entry.data for entry in entries(journal)] == [closed()]


def test_what_is_written_over_a_line_that_loses_everything_is_written_once(
    line: FaultyProxy, journal: RedisJournal
) -> None:
    claim = InWorld.start(journal, journal)

    answer = during(line.drop, line.release, lambda: journal.report([segment(claim, 1, 3)]))

    assert answer == [""]
    assert reported(journal) == [[(ONE, 1, 1), (ONE, 1, 2), (ONE, 1, 3)]]


def test_what_is_written_over_a_line_that_is_too_slow_is_written_once(line: FaultyProxy, journal: RedisJournal) -> None:
    claim = InWorld.start(journal, journal)

    def slow() -> None:
        line.delay_s = 2 * TIMEOUT_S

    def fast() -> None:
        line.delay_s = 0.0

    assert during(slow, fast, lambda: journal.report([segment(claim, 1)])) == [""]
    assert reported(journal) == [[(ONE, 1, 1)]]


def test_a_line_that_is_refused_is_tried_until_it_is_not(line: FaultyProxy, journal: RedisJournal) -> None:
    def refuse() -> None:
        line.refuse()
        line.cut()

    during(refuse, line.accept, lambda: journal.record(closed()))

    assert len(entries(journal)) == 1


def test_a_server_that_takes_no_writes_is_said_to_and_waited_for(
    server: RestartableRedis, journal: RedisJournal, caplog: pytest.LogCaptureFixture
) -> None:
    server.client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(BrokerUnavailable, match=r"refused for .*NOREPLICAS"):
            RedisJournal(journal._client, "y", patience_s=0.01).lock("driver-1", "process 1 on head", LONG_S)
        during(
            lambda: None, lambda: server.client.config_set("min-replicas-to-write", 0), lambda: journal.record(closed())
        )
    finally:
        server.client.config_set("min-replicas-to-write", 0)

    assert "takes no writes" in caplog.text
    assert len(entries(journal)) == 1


def test_a_control_channel_that_leads_nowhere_is_made_anew(
    line: FaultyProxy, journal: RedisJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody says that the connection is broken: it is open, and takes what is sent."""
    monkeypatch.setattr("mqtune.journal.fleet.SILENCE_S", TIMEOUT_S)
    hints = ControlChannel(journal._client, "w")
    assert hints.next(0.01) is None
    line.drop()

    with pytest.raises(BrokerUnavailable, match="not a word"):
        eventually(lambda: hints.next(0.05))
    line.release()
    InWorld.start(journal, journal)
    with contextlib.suppress(BrokerUnavailable):
        hints.next(0.01)
    assert hints.next(0.01) is None
    journal.order([Order.save(ONE, 1, 1)])

    assert eventually(lambda: hints.next(0.1)) == ["x", ONE, 1, "save:1"]


@pytest.mark.parametrize("fault", ["cut", "killed"])
def test_an_idle_connection_that_broke_counts_as_an_outage_when_it_is_used_again(
    server: RestartableRedis, line: FaultyProxy, journal: RedisJournal, fault: str
) -> None:
    before = journal.outages
    line.cut() if fault == "cut" else server.client.client_kill_filter(_type="normal", skipme=True)

    journal.record(closed())

    assert journal.outages > before


def test_a_server_that_was_restarted_while_no_connection_was_open_counts_as_an_outage(
    server: RestartableRedis, journal: RedisJournal
) -> None:
    before = journal.outages
    journal._client.close_unused(0)
    server.restart()

    journal.record(closed())

    assert journal.outages > before


# Without what it had.


def filled(journal: RedisJournal, folder: Path, trials: int = 2) -> JournalFile:
    """Return a copy of a journal in which so many attempts run."""
    journal.record(CREATED, definition=encode_value(DEFINITION))
    for number in range(1, trials + 1):
        trial = TrialId(f"{number:04d}")
        claim = InWorld.start(journal, journal, trial)
        journal.report([segment(claim, 1, 2)])
    copy = JournalFile(folder / JOURNAL_FILE)
    copy.begin(entries(journal))
    copy.close()
    return copy


def test_a_long_journal_is_put_back_whole(server: RestartableRedis, journal: RedisJournal, tmp_path: Path) -> None:
    copy = filled(journal, tmp_path, trials=UPLOAD_COUNT // 2)
    before = entries(journal)
    server.lose_data()

    found = put_back(journal, copy, before[-1].id, [], at=1.0)

    after = entries(journal)
    assert found == (len(before), len(before))
    assert len(before) > UPLOAD_COUNT
    assert after[: len(before)] == before
    ends = [decode_event(entry.data) for entry in after[len(before) :]]
    assert all(isinstance(end, AttemptEnded) and end.error_type == FORGOTTEN for end in ends)
    assert len(ends) == UPLOAD_COUNT // 2
    journal.lock("driver-1", "", LONG_S)


def test_the_end_that_an_older_file_lacks_is_put_back(
    server: RestartableRedis, journal: RedisJournal, tmp_path: Path
) -> None:
    copy = filled(journal, tmp_path, trials=1)
    claim, worker = Claim(ONE, 1, "token-0001-1"), RedisJournal(journal._client, "x")
    server.keep_data()
    journal.report([segment(claim, 3, 2)])
    held = entries(journal)
    copy.begin(held)
    copy.close()
    server.lose_data(to_kept=True)
    assert worker.report([segment(claim, 5)]) == [GAP]
    assert not journal.holds(held[-1].id)

    bring_back(journal, copy, at=1.0)

    assert entries(journal)[: len(held)] == held
    assert worker.report([segment(claim, 5)]) == [FENCED]


def test_a_driver_that_begins_on_an_emptied_server_brings_its_copy_back(
    server: RestartableRedis, journal: RedisJournal, tmp_path: Path
) -> None:
    copy = filled(journal, tmp_path)
    before = entries(journal)
    server.client.flushall()
    later = RedisJournal(journal._client, "x")
    later.lock("driver-2", "process 2 on head", LONG_S)

    bring_back(later, copy, at=1.0, accept=lambda _: None)

    assert entries(later)[: len(before)] == before
    assert later.definition() == encode_value(DEFINITION)
    assert later.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2))
    again = Claim(ONE, 2, "token")
    later.claim(again, "w", LONG_S, started(again))
    later.end(again, ended(ONE, 2))


@pytest.mark.parametrize("is_written_since", [True, False])
def test_a_beginning_that_was_deleted_while_nobody_drove_is_brought_back(
    server: RestartableRedis, journal: RedisJournal, tmp_path: Path, *, is_written_since: bool
) -> None:
    copy = filled(journal, tmp_path, trials=1)
    before, claim = entries(journal), Claim(ONE, 1, "token-0001-1")
    server.client.delete(ExperimentKeys("x").journal)
    if is_written_since:
        assert journal.report([segment(claim, 3)]) == [""]

    bring_back(journal, copy, at=1.0)

    assert entries(journal)[: len(before)] == before
    assert journal.report([segment(claim, 4)]) == [FENCED]


def test_a_journal_with_its_beginning_and_one_of_another_definition_are_left_alone(
    server: RestartableRedis, journal: RedisJournal, tmp_path: Path
) -> None:
    copy = filled(journal, tmp_path, trials=1)
    before = entries(journal)
    bring_back(journal, copy, at=1.0)
    assert entries(journal) == before

    server.client.delete(ExperimentKeys("x").journal)
    journal.record(closed(), definition=encode_value({**DEFINITION, "seed": 7}))
    bring_back(journal, copy, at=1.0)
    assert [entry.data for entry in entries(journal)] == [closed()]


def test_a_copy_that_ends_too_early_is_not_taken_for_the_whole(
    server: RestartableRedis, journal: RedisJournal, tmp_path: Path
) -> None:
    copy = filled(journal, tmp_path)
    journal.record(closed())
    last = entries(journal)[-1]
    server.client.flushall()

    with pytest.raises(JournalGone, match="lacks the end"):
        put_back(journal, copy, last.id, [], at=1.0)

    assert server.client.keys("*") == []


def place(id_: str) -> tuple[int, ...]:
    """An entry's id, as the server orders them."""
    return tuple(map(int, id_.split("-")))


def test_what_follows_the_copy_in_redis_stays_behind_it(
    server: RestartableRedis, journal: RedisJournal, tmp_path: Path
) -> None:
    copy = filled(journal, tmp_path)
    held = entries(journal)
    journal.record(closed())
    behind = [entry.data for entry in entries(journal)[len(held) :]]

    put_back(journal, copy, held[-1].id, [*behind, closed("written, and lost")], at=1.0)

    found = entries(journal)
    assert found[: len(held)] == held
    put = [*behind, closed("written, and lost")]
    assert [entry.data for entry in found[len(held) :]][: len(put)] == put
    assert [entry.id for entry in found] == sorted((entry.id for entry in found), key=place)
    journal.record(closed("and later"))
    assert entries(journal)[-1].data == closed("and later")


def test_a_frozen_server_that_thaws_has_done_what_was_asked_once(
    server: RestartableRedis, journal: RedisJournal
) -> None:
    before = journal.outages

    during(server.freeze, server.thaw, lambda: journal.record(closed()))

    assert len(entries(journal)) == 1
    assert journal.outages > before
    eventually(lambda: journal.read(START.entry, count=10))
