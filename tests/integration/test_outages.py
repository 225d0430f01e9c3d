"""A journal whose server is cut off, silent, or comes back without what it had: real sockets, a real server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.journals.world import (
    LONG_S,
    ONE,
    InWorld,
    closed,
    entries,
    reported,
    segment,
)
from faulty_proxy import FaultyProxy
from restartable import RestartableRedis
from waiting import eventually

from mqtune.core.codec import encode_value
from mqtune.core.errors import BrokerUnavailable
from mqtune.core.events import AttemptEnded, ExperimentCreated, decode_event
from mqtune.core.keys import ExperimentKeys
from mqtune.core.timing import Timing
from mqtune.core.trial import FORGOTTEN, TrialId
from mqtune.journal import (
    FENCED,
    JOURNAL_FILE,
    Claim,
    ControlChannel,
    JournalFile,
    Order,
    RedisClient,
    RedisJournal,
    bring_back,
    open_client,
)

#: How long a command here may take before its connection counts as dead.
TIMEOUT_S = 0.3
#: So many attempts have more entries than are put back in one step.
SEVERAL_UPLOADS = 260
#: So short, too, is the silence after which a control channel counts as broken.
TIMING = Timing(connect_timeout_s=TIMEOUT_S, command_timeout_s=TIMEOUT_S, channel_silence_s=TIMEOUT_S)
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
def client(line: FaultyProxy) -> Iterator[RedisClient]:
    """A client on a line that fails when a test says so."""
    with contextlib.closing(open_client(line.url, timing=TIMING)) as client:
        yield client


@pytest.fixture
def journal(client: RedisClient) -> RedisJournal:
    """The journal as its driver has it, on that line."""
    journal = RedisJournal(client, "x")
    journal.lock("driver-1", "process 1 on head", LONG_S)
    return journal


# Cut off.


def test_a_report_that_gets_no_answer_is_written_once_and_counts_as_an_outage(
    line: FaultyProxy, journal: RedisJournal
) -> None:
    claim, before = InWorld.start(journal, journal), journal.outages
    line.drop()
    back = threading.Timer(2 * TIMEOUT_S, line.release)
    back.start()

    assert journal.report([segment(claim, 1, 3)]) == [""]

    back.join()
    assert reported(journal) == [[(ONE, 1, 1), (ONE, 1, 2), (ONE, 1, 3)]]
    assert journal.outages > before


def test_a_control_channel_that_leads_nowhere_is_made_anew(
    line: FaultyProxy, client: RedisClient, journal: RedisJournal
) -> None:
    """Nobody says that the connection is broken: it is open, and takes what is sent."""
    hints = ControlChannel(client, "w")
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


def test_a_server_that_was_restarted_while_no_connection_was_open_counts_as_an_outage(
    server: RestartableRedis, client: RedisClient, journal: RedisJournal
) -> None:
    before = journal.outages
    client.close_unused(0)
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
    copy = filled(journal, tmp_path, trials=SEVERAL_UPLOADS)
    before = entries(journal)
    server.lose_data()
    bring_back(journal, copy, at=1.0)
    after = entries(journal)
    assert after[: len(before)] == before
    ends = [decode_event(entry.data) for entry in after[len(before) :]]
    assert all(isinstance(end, AttemptEnded) and end.error_type == FORGOTTEN for end in ends)
    assert len(ends) == SEVERAL_UPLOADS
    journal.lock("driver-1", "", LONG_S)


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
