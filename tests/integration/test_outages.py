"""A journal whose server is cut off, silent, or comes back without what it had: real sockets, a real server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from contract.journals.world import LONG_S, ONE, InWorld, reported, segment
from faulty_proxy import FaultyProxy
from restartable import RestartableRedis
from waiting import eventually

from mqtune.core.errors import BrokerUnavailable
from mqtune.core.timing import Timing
from mqtune.journal import ControlChannel, Order, RedisClient, RedisJournal, open_client

#: How long a command here may take before its connection counts as dead.
TIMEOUT_S = 0.3
#: So short, too, is the silence after which a control channel counts as broken.
TIMING = Timing(connect_timeout_s=TIMEOUT_S, command_timeout_s=TIMEOUT_S, channel_silence_s=TIMEOUT_S)


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


def test_a_report_that_gets_no_answer_is_written_once_and_counts_as_an_outage(line: FaultyProxy, journal: RedisJournal):
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
    hints = ControlChannel(client, "w")
    assert hints.next(0.01) is None
    line.drop()

    with pytest.raises(BrokerUnavailable, match="no message for"):
        eventually(lambda: hints.next(0.05))
    line.release()
    InWorld.start(journal, journal)
    with contextlib.suppress(BrokerUnavailable):
        hints.next(0.01)
    assert hints.next(0.01) is None
    journal.order([Order.save(ONE, 1, 1)])

    assert eventually(lambda: hints.next(0.1)) == ["x", ONE, 1, "save:1"]
