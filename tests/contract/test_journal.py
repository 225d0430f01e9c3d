from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import redis
from contract.journals import JournalContract, World
from contract.journals.world import (
    ASSIGNMENT,
    INFO,
    LONG_S,
    ONE,
    SHORT_S,
    TWO,
    FaultyLine,
    MemoryWorld,
    RedisWorld,
    closed,
    decided,
    ended,
    entries,
    kinds,
    segment,
    staged,
    started,
)
from servers import EACH_SERVER, started_on
from waiting import DEADLINE_S, eventually

from mqtune.backends import EmbeddedServer
from mqtune.core.codec import encode_value
from mqtune.core.errors import BrokerUnavailable, MessageVersionError, NameTaken
from mqtune.core.events import VERSION
from mqtune.core.keys import WORKERS, ExperimentKeys, control_channel, worker_key
from mqtune.core.timing import Timing
from mqtune.core.trial import Intent
from mqtune.journal import (
    GAP,
    Claim,
    ControlChannel,
    Entry,
    Fleet,
    Grant,
    Journal,
    LastAttempt,
    MemoryServer,
    Order,
    RedisClient,
    RedisJournal,
    connect,
    renew_all,
)

#: More entries than are put back in one step.
SEVERAL_UPLOADS = 1_200


@pytest.fixture(scope="module", params=EACH_SERVER)
def redis_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tmp_path_factory.mktemp("server"), binary=started_on(request)) as server:
        yield server


class TestMemoryJournal(JournalContract):
    @pytest.fixture
    def world(self) -> World:
        return MemoryWorld()


class TestRedisJournal(JournalContract):
    @pytest.fixture
    def world(self, redis_client: redis.Redis) -> World:
        return RedisWorld(redis_client)

    @pytest.fixture
    def line(self, redis_client: redis.Redis) -> FaultyLine:
        """A client that a test may cut."""
        return FaultyLine(redis_client)

    @pytest.fixture
    def cut_driver(self, line: Any) -> Journal:
        """The journal as its driver has it, on that line."""
        journal = RedisJournal(line, "x")
        journal.lock("driver-1", "process 1 on head", LONG_S)
        return journal

    def test_what_is_kept_of_a_trial_expires_when_its_attempt_has_ended_and_not_while_one_is_under_way(
        self, redis_client: Any, driver: Journal, worker: Journal
    ) -> None:
        key = ExperimentKeys("x").trial(ONE)
        week_s = 7 * 86400
        claim = self.start(driver, worker)
        assert redis_client.ttl(key) == -1

        worker.end(claim, ended())
        assert week_s - 60 < redis_client.ttl(key) <= week_s

        driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2))
        assert redis_client.ttl(key) == -1
        driver.intend(ONE, 2, Intent.STOP, decided(ONE, 2), ended(ONE, 2))
        assert redis_client.ttl(key) > 0

        self.start(driver, worker, attempt=3, lease_s=0.0)
        assert redis_client.ttl(key) == -1
        eventually(lambda: driver.lose(ONE, 3, "expired", ended(ONE, 3)))
        assert redis_client.ttl(key) > 0

    def test_a_key_of_another_type_in_the_place_of_leases_is_cleared_away(
        self, redis_client: Any, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        keys = ExperimentKeys("x")
        redis_client.delete(keys.leases)
        redis_client.set(keys.leases, "no leases")

        assert driver.expired() == []
        assert worker.renew([held], LONG_S) == [""]

        redis_client.delete(keys.trial(ONE))
        redis_client.set(keys.trial(ONE), "no trial")
        assert driver.look([(ONE, 1)], LONG_S).under_way == [False]
        assert driver.lose(ONE, 1, "gone", ended(), timestamp=1.0) is True
        assert driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2)) is True

    @pytest.mark.parametrize("nonsense", ["", "nonsense", "nan", "-inf", "\0", "9" * 5_000])
    def test_nonsense_about_who_holds_a_trial_is_nobody(
        self, redis_client: Any, driver: Journal, nonsense: str
    ) -> None:
        driver.stage(ONE, 1, ASSIGNMENT, staged(ONE))
        fields = dict.fromkeys(("held_until", "held_by", "importing_since", "attempt"), nonsense)
        redis_client.hset(ExperimentKeys("x").trial(ONE), mapping=fields)

        (found,) = driver.unclaimed(older_than_s=-1.0)
        assert (found.trial, found.worker) == (ONE, "")

    @pytest.mark.parametrize("nonsense", ["", "nonsense", "nan", "-inf", "\0"])
    def test_nonsense_in_the_hash_of_a_trial_keeps_no_driver_and_no_other_trial_from_going_on(
        self, redis_client: Any, driver: Journal, worker: Journal, held: Claim, nonsense: str
    ) -> None:
        key, other = ExperimentKeys("x").trial(ONE), self.start(driver, worker, TWO)
        redis_client.hset(key, "sequence", nonsense)

        assert worker.report([segment(held, 2), segment(other, 1)]) == [GAP, ""]
        assert worker.report([segment(held, 1)]) == [GAP], "it may be there already"
        redis_client.hset(key, "orders", nonsense)
        assert driver.order([Order.save(ONE, 1, 1)]) == [True]
        assert worker.renew([held, other], LONG_S) == [nonsense or "save:1", ""]
        assert worker.end(held, ended(), reports=2) is False
        redis_client.hset(ExperimentKeys("x").trial(TWO), "sequence", nonsense)
        assert worker.end(other, ended(TWO)) is True

        redis_client.hset(key, "attempt", nonsense)
        assert driver.look([(ONE, 1)], LONG_S).under_way == [False]
        assert driver.lose(ONE, 1, "gone", ended(), timestamp=1.0) is True
        redis_client.hset(key, mapping={"attempt": nonsense, "timestamp": nonsense})
        assert driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2)) is True
        assert worker.claim(Claim(ONE, 2, "t"), "w", LONG_S, started(Claim(ONE, 2, "t"))) == Grant(ASSIGNMENT, 0.0)

    @pytest.mark.parametrize("nonsense", [b"x", b"\xff\n", b"../x 1-0 2-0 3 4\n", b"p-1 1-0 2-0 3 4", b"p1 1 2 3 4\n"])
    def test_nonsense_in_place_of_chapters_is_named(self, redis_client: Any, driver: Journal, nonsense: bytes) -> None:
        assert driver.chapters() == []
        redis_client.hset(ExperimentKeys("x").chapters, "lines", nonsense)
        with pytest.raises(MessageVersionError, match="which mqtune did not write"):
            driver.chapters()

    def test_the_number_of_an_attempt_that_no_entry_has_staged_keeps_no_trial_waiting(
        self, redis_client: Any, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        before = entries(driver)[-1].id
        worker.report([segment(held, 1)])
        redis_client.hset(ExperimentKeys("x").trial(ONE), "attempt", "99")

        assert driver.look([(ONE, 1)], LONG_S).under_way == [False]
        assert driver.lose(ONE, 1, "gone", ended(), timestamp=1.0, read=before) is False, (
            "what has not been read may have staged it"
        )
        assert driver.lose(ONE, 1, "gone", ended(), timestamp=1.0, read=entries(driver)[-1].id) is True
        assert driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2)) is True

    def test_a_worker_gets_no_hint_for_a_worker_of_its_name_in_another_database(
        self, redis_client: redis.Redis, redis_server: EmbeddedServer, driver: Journal, worker: Journal
    ) -> None:
        hints = ControlChannel(redis_client, "w")
        assert hints.next(0.001) is None
        self.start(driver, worker, TWO)
        with contextlib.closing(connect(redis_server.url.replace("db=0", "db=1"))) as other:
            there = RedisJournal(other, "x")
            try:
                there.lock("driver", "", LONG_S)
                self.start(there, there)
                listening = ControlChannel(other, "w")
                assert listening.next(0.001) is None

                there.intend(ONE, 1, Intent.STOP, decided(), ended())
                driver.intend(TWO, 1, Intent.STOP, decided(TWO), ended(TWO))

                assert eventually(lambda: listening.next(0.1)) == ["x", ONE, 1, "stop"]
                assert eventually(lambda: hints.next(0.1)) == ["x", TWO, 1, "stop"]
                assert (listening.next(0.05), hints.next(0.05)) == (None, None)
            finally:
                other.flushdb()

    def test_leases_of_several_experiments_are_renewed_in_one_step_and_broken_keys_of_one_cost_no_other_its_leases(
        self, redis_client: redis.Redis
    ) -> None:
        claims, journals = [], [RedisJournal(redis_client, name) for name in ("first", "broken", "last")]
        for journal in journals:
            journal.lock("driver", "", LONG_S)
            claims.append(self.start(journal, journal))
            redis_client.zadd(ExperimentKeys(journal.experiment).leases, {ONE: 0})
        redis_client.set(ExperimentKeys("broken").meta, "no hash")
        commands: Any = redis_client
        commands.config_resetstat()

        first, broken, last = renew_all([(each, [claim]) for each, claim in zip(journals, claims, strict=True)], LONG_S)

        assert commands.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
        assert (first, last) == ([""], [""])
        assert "WRONGTYPE" in str(broken)
        assert [journal.expired() for journal in journals] == [[], [ONE], []]
        with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
            journals[1].renew([claims[1]], LONG_S)

    def test_the_server_may_forget_scripts(self, redis_client: redis.Redis, driver: Journal, worker: Journal) -> None:
        calls: list[Callable[[], object]] = [
            lambda: driver.lock("driver-1", "", LONG_S),
            lambda: driver.stage(ONE, 1, ASSIGNMENT, staged()),
            lambda: worker.claim(Claim(ONE, 1, "t"), "w", LONG_S, started(Claim(ONE, 1, "t"))),
            lambda: worker.report([segment(Claim(ONE, 1, "t"), 1)]),
        ]
        for call in calls:
            redis_client.script_flush()
            call()

        assert kinds(driver) == ["TrialStaged", "AttemptStarted", "Reports"]

    @pytest.mark.parametrize(
        "error",
        [
            redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
            redis.exceptions.ReadOnlyError("You can't write against a read only replica."),
            redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
            redis.exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
            redis.exceptions.ResponseError("Error running script: @user_script: 3: -MISCONF Errors writing to the AOF"),
            redis.exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
            redis.exceptions.ResponseError("BUSY Redis is busy running a script."),
            redis.exceptions.TimeoutError("Timeout reading from socket"),
        ],
        ids=lambda error: str(error)[:20],
    )
    def test_what_passes_there_is_waited_for(self, line: FaultyLine, cut_driver: Journal, error: Exception) -> None:
        line.cut("call", error=error)
        cut_driver.record(closed())
        assert line.faults == 1
        line.cut("call", error=error)
        assert kinds(cut_driver) == ["ExperimentEnded"]
        assert line.faults == 2

    def test_what_does_not_pass_on_the_server_is_raised(self, redis_client: redis.Redis, driver: Journal) -> None:
        redis_client.set(ExperimentKeys("x").journal, "no stream")

        with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
            driver.record(closed())

    def test_a_server_that_stays_away_is_given_up(self, line: Any, caplog: pytest.LogCaptureFixture) -> None:
        line.cut("call", times=10**9)
        journal = RedisJournal(line, "x", patience_s=0.06)
        with caplog.at_level(logging.WARNING), pytest.raises(BrokerUnavailable, match="line is cut"):
            journal.renew([Claim(ONE, 1, "t")], LONG_S)

        assert line.faults >= 2
        assert [record.message for record in caplog.records] == [
            "Redis is away (the line is cut); trying again for up to 0.06 s"
        ]

    def test_waiting_for_the_server_ends_with_the_process(self, redis_client: RedisClient, line: FaultyLine) -> None:
        redis_client.timing = Timing(first_retry_s=LONG_S)
        closing = threading.Event()
        line.cut("call", times=10**9)
        journal = RedisJournal(line, "x", closing=closing)
        raised: list[BaseException] = []

        def call() -> None:
            try:
                journal.renew([Claim(ONE, 1, "t")], LONG_S)
            except BrokerUnavailable as error:
                raised.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        eventually(lambda: line.faults)
        closing.set()
        thread.join(DEADLINE_S)

        assert len(raised) == 1

    @pytest.mark.parametrize("lost", ["call", "answer"])
    @pytest.mark.parametrize("step", ["delete", "evalsha"])
    def test_what_is_put_back_is_there_once_also_when_the_connection_was_lost_on_the_way(
        self, redis_client: redis.Redis, line: FaultyLine, cut_driver: Journal, step: str, lost: str
    ) -> None:
        driver = cut_driver
        driver.record(closed())
        held = entries(driver)
        # So that the server knows the script.
        JournalContract.put_back(driver, held)
        redis_client.flushdb()
        line.cut(lost, on=step)
        JournalContract.put_back(driver, held, ended(), attempts=(LastAttempt(ONE, 1, 0.0),))

        assert line.faults == 1
        assert [entry.data for entry in entries(driver)] == [held[0].data, ended()]
        assert redis_client.keys("*restored*") == []
        assert redis_client.ttl(ExperimentKeys("x").journal) == -1

    def test_entries_put_back_in_part_expire_with_their_driver(
        self, redis_client: redis.Redis, driver: Journal
    ) -> None:
        driver.record(closed())
        redis_client.flushdb()

        def dying() -> Iterator[Entry]:
            for number in range(1, SEVERAL_UPLOADS):
                yield Entry(f"{number}-0", closed())
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            driver.restore(dying, [], [], requests={}, definition=b"")

        assert [redis_client.ttl(key) > 0 for key in redis_client.keys("*")] == [True]

    def test_a_connection_made_anew_counts_as_an_outage(self, redis_client: redis.Redis, driver: Journal) -> None:
        driver.record(closed())
        before = driver.outages
        driver.record(closed("interrupted"))
        assert driver.outages == before

        redis_client.connection_pool.disconnect()
        driver.record(closed("failed"))

        assert driver.outages == before + 1

    def test_a_clock_of_the_servers_that_is_set_forward_counts_as_an_outage(
        self, redis_client: redis.Redis, driver: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seconds, rest = redis_client.time()
        driver.expired()
        before = driver.outages
        driver.expired()
        assert driver.outages == before

        monkeypatch.setattr(redis_client, "time", lambda: (seconds + 3600, rest))
        driver.expired()
        driver.expired()

        assert driver.outages == before + 1

    @pytest.mark.parametrize("news", ["join", "leave"])
    def test_a_blocking_read_wakes_when_a_worker_joins_or_leaves(
        self, redis_client: redis.Redis, driver: Journal, world: World, news: str
    ) -> None:
        fleet = Fleet(redis_client, patience_s=1.0)
        reader = world.journal()
        reader.read("0-0", count=1, block_s=0.001)
        reader.fleet_changed = False
        done = threading.Event()

        def read() -> None:
            while not reader.fleet_changed:
                assert reader.read("0-0", count=10, block_s=DEADLINE_S) == []
            done.set()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        fleet.join(INFO, LONG_S) if news == "join" else fleet.leave("w")

        assert done.wait(DEADLINE_S)
        thread.join()


class TestFleet:
    @pytest.fixture
    def fleet(self, redis_client: redis.Redis) -> Fleet:
        return Fleet(redis_client, patience_s=1.0)

    def test_workers_are_listed_by_name_from_joining_until_they_leave_or_are_silent(self, fleet: Fleet) -> None:
        fleet.join(replace(INFO, name="b"), LONG_S)
        fleet.join(replace(INFO, name="a"), LONG_S)
        assert [info.name for info in fleet.workers()] == ["a", "b"]

        fleet.leave("a")

        assert fleet.workers() == [replace(INFO, name="b")]
        fleet.keep(replace(INFO, name="b"), SHORT_S)
        eventually(lambda: fleet.workers() == [])

    def test_a_heartbeat_repeats_no_description_that_is_there(self, fleet: Fleet, redis_client: redis.Redis) -> None:
        fleet.join(INFO, LONG_S)
        assert LONG_S < cast("int", redis_client.ttl(worker_key(INFO.name))) < 10 * LONG_S, "it is kept for a while"
        redis_client.set(worker_key(INFO.name), b"said before")
        fleet.keep(INFO, LONG_S)
        assert redis_client.get(worker_key(INFO.name)) == b"said before"

        fleet.keep(replace(INFO, slots=7), LONG_S)
        assert fleet.workers() == [replace(INFO, slots=7)]

    @pytest.mark.parametrize("lost", ["all", "description"])
    def test_a_lost_description_comes_back_by_heartbeat(
        self, fleet: Fleet, redis_client: redis.Redis, lost: str
    ) -> None:
        fleet.join(INFO, LONG_S)
        fleet.keep(INFO, LONG_S)
        if lost == "all":
            redis_client.flushdb()
        else:
            redis_client.delete(worker_key(INFO.name))

        fleet.drain(INFO)

        assert fleet.keep(INFO, LONG_S) is True
        assert fleet.workers() == [INFO]

    def test_a_worker_that_is_to_drain_is_woken_by_a_hint_that_it_can_read(
        self, fleet: Fleet, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        hints = ControlChannel(redis_client, INFO.name)
        hints.next(0.1)

        fleet.drain(INFO)

        assert eventually(lambda: hints.next(0.1)) == ["", "", 0, ""]
        assert caplog.records == []

    def test_a_worker_that_can_not_be_understood_is_left_out_with_a_warning(
        self, fleet: Fleet, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        fleet.join(INFO, LONG_S)
        soon = (time.time() + LONG_S) * 1000
        strange = [
            b"\xc1",
            b"",
            encode_value([VERSION + 1, {}]),
            encode_value([VERSION, {"name": "x"}]),
            b"\x92\x01\xc0",
        ]
        for number, data in enumerate(strange):
            redis_client.set(worker_key(f"strange-{number}"), data)
            redis_client.zadd(WORKERS, {f"strange-{number}": soon})
        # Any worker's account may write there, and all drivers and workers read it.
        redis_client.zadd(WORKERS, {"of another type": soon, b"\xff\xfe": soon})
        redis_client.lpush(worker_key("of another type"), "x")

        assert fleet.workers() == [INFO]

        assert len(caplog.records) >= len(strange)
        assert r"\xff\xfe" in caplog.text

    def test_a_name_is_one_processs_until_that_is_gone(self, fleet: Fleet, redis_client: redis.Redis) -> None:
        second = Fleet(redis_client, patience_s=1.0)
        fleet.join(INFO, LONG_S)

        for take in (lambda: second.take_name(INFO.name, LONG_S), lambda: second.join(replace(INFO, slots=9), LONG_S)):
            with pytest.raises(NameTaken, match=rf"worker {INFO.name} \(process {os.getpid()} on ") as refused:
                take()
            assert refused.value.holder == fleet.token
        second.leave(INFO.name)
        assert fleet.workers() == [INFO]
        assert fleet.keep(INFO, LONG_S) is False

        second.take_name(INFO.name, LONG_S, dead=fleet.token)
        with pytest.raises(NameTaken):
            fleet.keep(INFO, LONG_S)
        second.leave(INFO.name)
        fleet.keep(INFO, SHORT_S)
        time.sleep(2 * SHORT_S)
        second.take_name(INFO.name, LONG_S)

    def test_hints_that_can_not_be_read_are_passed_over(self, redis_client: redis.Redis) -> None:
        hints = ControlChannel(redis_client, "w")
        assert hints.next(0.001) is None
        good = ["x", "0001", 1, "stop"]
        for data in (b"", b"\xc1", encode_value(7), encode_value([[1, 2], 3]), encode_value([good])):
            redis_client.publish(control_channel("w"), data)

        assert eventually(lambda: hints.next(1.0)) == good

    def test_hints_come_again_after_the_connection_was_lost(self, redis_client: redis.Redis) -> None:
        hints = ControlChannel(redis_client, "w")
        assert hints.next(0.001) is None
        redis_client.client_kill_filter(_type="pubsub")

        with pytest.raises(BrokerUnavailable):
            eventually(lambda: hints.next(0.1))
        assert hints.next(0.001) is None
        commands: Any = redis_client
        eventually(lambda: commands.pubsub_numsub(control_channel("w"))[0][1])
        redis_client.publish(control_channel("w"), encode_value([["x", "0001", 1, "stop"]]))

        assert eventually(lambda: hints.next(0.1)) == ["x", "0001", 1, "stop"]


def test_a_memory_journal_that_forgets_gives_its_one_reader_every_entry_once() -> None:
    world = MemoryWorld()
    world.server = MemoryServer(lambda: world.now, forgets=True)
    driver = world.journal()
    driver.lock("a", "", LONG_S)
    written, found, last = [], [], "0-0"

    for number in range(50):
        for _ in range(number % 4):
            written.append(closed(f"outcome {len(written)}"))
            driver.record(written[-1])
        page = driver.read(last, count=1 + number % 3)
        assert driver.read(last, count=1 + number % 3) == page, "it may ask again for what it has not gone behind"
        found += [entry.data for entry in page]
        last = page[-1].id if page else last
    while more := driver.read(last, count=7):
        found += [entry.data for entry in more]
        last = more[-1].id

    assert found == written
    assert world.server.experiments["x"].entries == []
