"""A real worker goes on taking trials whatever happens to its connections, and mends itself when its consumer has stopped."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import redis
from altered_worker import altered_worker, let_go, tuner_of
from restartable import RestartableRedis
from waiting import eventually, lives

import mqtune
from mqtune.core.trial import AttemptEnd, TrialStatus
from mqtune.testing.backends.world import drive
from mqtune.worker import MOST_COMMANDS

#: How long a worker may take to see that it is stuck, hand its trials back, and be ready once more, on a busy machine.
ANEW_S: Final = 60.0
#: A worker that looks for trials that wait twice a second, and acts on four seconds of it.
QUICK = """
from pathlib import Path
from mqtune.worker import app as worker_app
timing = Timing(round_s=0.5, stuck_s=4.0)
stuck = Path({stuck!r})
ask = worker_app.TrialChannel._brpop_start
"""
#: Its first connection asks the queue for nothing more, as soon as there is a file that says so.
STUCK_UNTIL_RECONNECTED = (
    QUICK
    + """
channels = []
def ask_if_not_stuck(channel, timeout=None):
    if channel not in channels:
        channels.append(channel)
    if channel is not channels[0] or not stuck.exists():
        ask(channel, timeout)
worker_app.TrialChannel._brpop_start = ask_if_not_stuck
"""
)
#: The same on all connections, until the process begins anew.
STUCK_UNTIL_RESTARTED = (
    QUICK
    + """
stuck.unlink(missing_ok=True)
def ask_if_not_stuck(channel, timeout=None):
    if not stuck.exists():
        ask(channel, timeout)
worker_app.TrialChannel._brpop_start = ask_if_not_stuck
"""
)
#: A worker that often looks for connections that it does not use, and soon closes them.
TIDY = """
timing = Timing(round_s=0.3, unused_s=3.5)
"""
#: As soon as there is a file that says so, what a trial sends can't be joined for lack of memory.
NO_MEMORY = """
from pathlib import Path
from mqtune.worker.uplink import Stream
full = Path({full!r})
read = Stream.read
def read_if_there_is_memory(stream):
    if full.exists():
        raise MemoryError("no room")
    return read(stream)
Stream.read = read_if_there_is_memory
"""
SLOTS = ("--gpus", "0", "--slots", "2", "--cpus", "2")


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableRedis]:
    with RestartableRedis(tmp_path_factory.mktemp("s")) as server:
        yield server


@pytest.fixture
def client(server: RestartableRedis) -> Any:
    return server.client


@pytest.fixture
def tuner(server: RestartableRedis, client: Any) -> Iterator[mqtune.Tuner]:
    with tuner_of(server.url, "stuck", mqtune.Resources(cpus=1)) as tuner:
        yield tuner


def wait_until_stuck(client: Any, file: Path) -> None:
    """Have the worker's consumer stop; it has no question under way afterwards that a trial could be the answer to."""
    file.touch()
    eventually(lambda: client.info("clients")["blocked_clients"] == 0, 30)


def test_a_worker_that_takes_nothing_reconnects_and_its_trials_go_on(
    server: RestartableRedis, client: Any, tuner: mqtune.Tuner, tmp_path: Path
) -> None:
    stuck = tmp_path / "no-more"
    with altered_worker(server.url, tmp_path, STUCK_UNTIL_RECONNECTED.format(stuck=str(stuck)), *SLOTS) as worker:
        first = tuner.add({"number": 1})
        drive(tuner, lambda: first.attempt.reports)
        wait_until_stuck(client, stuck)
        let_go(tmp_path, 2)

        second = tuner.add({"number": 2})
        drive(tuner, lambda: second.status is TrialStatus.COMPLETED)

        assert first.status is TrialStatus.RUNNING
        let_go(tmp_path, 1)
        drive(tuner, lambda: first.status is TrialStatus.COMPLETED)
        assert (first.attempt.number, second.attempt.number) == (1, 1)
        assert worker.poll() is None
        log = (tmp_path / "worker.log").read_text()
        assert log.count("reconnecting") == 1
        assert "this worker restarts" not in log


def test_a_worker_that_reconnecting_does_not_help_hands_its_trials_back_and_starts_anew(
    server: RestartableRedis, client: Any, tuner: mqtune.Tuner, tmp_path: Path
) -> None:
    stuck = tmp_path / "no-more"
    with altered_worker(server.url, tmp_path, STUCK_UNTIL_RESTARTED.format(stuck=str(stuck)), *SLOTS) as worker:
        first = tuner.add({"number": 1})
        drive(tuner, lambda: first.attempt.reports)
        began = psutil.Process(worker.pid).create_time()
        wait_until_stuck(client, stuck)
        let_go(tmp_path, 2)

        second = tuner.add({"number": 2})
        # It looks for 8 s, hands the trials back, and starts anew as a whole.
        eventually(lambda: tuner.step(0.05) or second.status is TrialStatus.COMPLETED, ANEW_S)
        eventually(lambda: tuner.step(0.05) or (first.attempt.number == 2 and first.attempt.reports), ANEW_S)

        handed_back = tuner.results().experiment.trials[first.id].attempts[0]
        assert handed_back.end is AttemptEnd.HANDED_BACK
        assert "its worker took nothing any more and was restarted" in handed_back.error
        assert psutil.Process(worker.pid).create_time() == began, "to its supervisor it is the same process"
        let_go(tmp_path, 1)
        drive(tuner, lambda: first.status is TrialStatus.COMPLETED)
        assert first.failures == 0
        children = psutil.Process(worker.pid).children()
        assert all(lives(child) for child in children), "nothing is left of the time before"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == os.EX_OK


def test_a_worker_takes_trials_after_its_connections_were_cut_and_redis_was_restarted_time_and_again(
    server: RestartableRedis, client: Any, tuner: mqtune.Tuner, tmp_path: Path
) -> None:
    with altered_worker(server.url, tmp_path, "", *SLOTS) as worker:
        let_go(tmp_path, *range(100))
        numbers = iter(range(100))

        def a_trial_completes() -> None:
            trial = tuner.add({"number": next(numbers)})
            drive(tuner, lambda: trial.status is TrialStatus.COMPLETED)

        a_trial_completes()
        for _ in range(3):
            with contextlib.suppress(redis.ConnectionError):
                # Those that wait for a message, and those that are between two.
                client.client_kill_filter(_type="normal", skipme=True)
                client.client_kill_filter(_type="pubsub", skipme=True)
            a_trial_completes()
            server.restart()
            a_trial_completes()

        assert worker.poll() is None


def test_a_seat_that_is_given_back_is_on_its_queue_again_also_when_redis_was_restarted_meanwhile(
    server: RestartableRedis, tmp_path: Path
) -> None:
    with (
        tuner_of(server.url, "double", mqtune.Resources(cpus=1, machines=2)) as double,
        altered_worker(server.url, tmp_path, "", *SLOTS, "--hold-seats", "2"),
    ):
        double.add({"number": 1})
        drive(double, lambda: times_taken(tmp_path))
        server.restart()
        taken = times_taken(tmp_path)

        # Nobody steps its driver any more, which would publish after a while what it misses.
        eventually(lambda: times_taken(tmp_path) > taken + 4, 30, why="its seats wait no more")
        assert "raised unexpected" not in (tmp_path / "worker.log").read_text()


def times_taken(folder: Path) -> int:
    return (folder / "worker.log").read_text().count("] received")


#: The queue, remote commands, events, the control channel, and two for all else: a thousand workers leave room in Redis' limit of 10,000.
FEW_CONNECTIONS = 6
KOMBUS = 3


def test_a_worker_has_few_connections_whatever_its_slots(
    server: RestartableRedis, client: Any, tuner: mqtune.Tuner, tmp_path: Path
) -> None:
    slots, trials = 8, 16
    peak = 0
    client.client_setname("mqtune-client")

    def names() -> list[str]:
        return [each["name"] for each in client.client_list() if each["name"] != "mqtune-client"]

    def all_done() -> bool:
        nonlocal peak
        peak = max(peak, names().count("mqtune-worker"))
        return all(trial.status is TrialStatus.COMPLETED for trial in added)

    with altered_worker(server.url, tmp_path, TIDY, "--gpus", "0", "--slots", f"{slots}", "--cpus", f"{slots}"):
        eventually(lambda: 0 < names().count("") <= KOMBUS, 5, why="what the worker began with stays")
        let_go(tmp_path, *range(trials))
        added = [tuner.add({"number": number}) for number in range(trials)]
        drive(tuner, all_done)
        tuner.close()

        # The limit, and beside it the control channel and the pipeline of a heartbeat.
        assert 1 < peak <= MOST_COMMANDS + 2
        eventually(lambda: 0 < len(names()) <= FEW_CONNECTIONS, 30, why="connections that nobody uses stay")


def test_a_worker_whose_uplink_has_died_ends_at_once_with_an_error_and_its_trials_with_it(
    server: RestartableRedis, client: Any, tuner: mqtune.Tuner, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    with altered_worker(server.url, tmp_path, NO_MEMORY.format(full=str(full)), *SLOTS) as worker:
        first, second = (tuner.add({"number": number}) for number in (1, 2))
        drive(tuner, lambda: first.attempt.reports and second.attempt.reports)
        below = psutil.Process(worker.pid).children(recursive=True)
        full.touch()
        let_go(tmp_path, 1)

        assert worker.wait(20) == os.EX_SOFTWARE, "a supervisor starts it again"
        eventually(lambda: not any(lives(process) for process in below))
        assert "the thread mqtune-uplink can't go on" in (tmp_path / "worker.log").read_text()
