"""A real worker goes on taking trials whatever happens to its connections, and mends itself when its consumer has stopped."""

from __future__ import annotations

import re
from pathlib import Path

from altered_worker import altered_worker, let_go, tuner_of
from restartable import RestartableRedis
from waiting import eventually

import mqtune
from mqtune.core.trial import TrialStatus
from mqtune.testing.backends.world import drive

#: A worker that looks twice a second for trials that wait, and acts on four seconds of it. As soon as there is a file that
#: says so, its first connection asks the queue for nothing more.
STUCK_UNTIL_RECONNECTED = """
from pathlib import Path
from mqtune.worker.tasks import transport
timing = Timing(round_s=0.5, stuck_s=4.0)
stuck = Path({stuck!r})
ask = transport.TrialChannel._brpop_start
channels = []
def ask_if_not_stuck(channel, timeout=None):
    if channel not in channels:
        channels.append(channel)
    if channel is not channels[0] or not stuck.exists():
        ask(channel, timeout)
transport.TrialChannel._brpop_start = ask_if_not_stuck
"""
SLOTS = ("--gpus", "0", "--slots", "2", "--cpus", "2")


def test_a_worker_that_takes_nothing_reconnects_and_its_trials_go_on(tmp_path: Path) -> None:
    stuck = tmp_path / "no-more"
    alteration = STUCK_UNTIL_RECONNECTED.format(stuck=str(stuck))
    with (
        RestartableRedis(tmp_path / "server") as server,
        tuner_of(server.url, "stuck", mqtune.Resources(cpus=1)) as tuner,
        altered_worker(server.url, tmp_path, alteration, *SLOTS) as worker,
    ):
        first = tuner.add({"number": 1})
        drive(tuner, lambda: first.attempt.reports)
        stuck.touch()
        # Afterwards it has no question under way that a trial could be the answer to.
        eventually(lambda: server.client.info("clients")["blocked_clients"] == 0, 30)
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


def test_a_worker_that_connects_again_to_a_full_redis_waits_until_it_is_not(
    tmp_path: Path,
) -> None:
    with (
        RestartableRedis(tmp_path / "server") as server,
        tuner_of(server.url, "stuck", mqtune.Resources(cpus=1)) as tuner,
        altered_worker(server.url, tmp_path, "", *SLOTS) as worker,
    ):
        client = server.client
        # The connection that it takes messages from. One that is killed before it does is replaced, and nothing is written by that.
        eventually(lambda: any(each["cmd"] == "brpop" for each in client.client_list()), 50)
        client.config_set("maxmemory", 1)
        client.client_kill_filter(_type="normal")
        met, log = re.compile(r"consumer: .*(OutOfMemory|used memory)"), tmp_path / "worker.log"
        eventually(lambda: met.search(log.read_text()) or worker.poll() is not None, 50)
        client.config_set("maxmemory", 0)

        trial = tuner.add({"number": 1})
        let_go(tmp_path, 1)
        drive(tuner, lambda: trial.status is TrialStatus.COMPLETED)
        assert worker.poll() is None
