"""Two teams whose accounts see their own experiments alone share the slots of one worker."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import trainables
from accounts import Accounts
from running import running_worker
from test_cli_show import run
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer, find_binary
from mqtune.core.resources import queues_of
from mqtune.core.trial import TrialStatus
from mqtune.journal import Fleet, connect

TEAMS = ("team-a-*", "team-b-*")
SLOT = mqtune.Resources(cpus=5)
OPTIONS = ("--gpus", "0", "--slots", "2", "--cpus", "10", "--experiments", ",".join(TEAMS))


def tuner(url: str, name: str, trials: int) -> mqtune.Tuner:
    return mqtune.Tuner(
        trainables.steady, {"x": mqtune.uniform(0, 1)}, metric="loss", mode="min", max_trials=trials, name=name,
        backend=url, resources=SLOT, run=mqtune.RunOptions(progress=False),
    )  # fmt: skip


def test_teams_share_a_worker_and_see_nothing_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        EmbeddedServer.start(tmp_path / "server", binary=find_binary()) as server,
        contextlib.closing(Accounts(server.url)) as accounts,
        running_worker(accounts.make("worker"), tmp_path / "worker.log", *OPTIONS, name="shared"),
    ):
        urls = [accounts.make("driver", f"driver-{team[5]}", experiments=team) for team in TEAMS]
        with contextlib.closing(connect(server.url)) as client:
            (info,) = eventually(Fleet(client, patience_s=5).workers)
        ours, theirs = queues_of(info.queue)
        with contextlib.ExitStack() as stack:
            both = [
                stack.enter_context(contextlib.closing(tuner(url, f"team-{team[5]}-1", 4)))
                for url, team in zip(urls, TEAMS, strict=True)
            ]
            while not all(each.is_finished for each in both):
                for each in both:
                    if not each.is_finished:
                        each.step(0.05)

            for each in both:
                done = each.get_trials(TrialStatus.COMPLETED)
                assert len(done) == 4
                assert {trial.attempt.worker for trial in done} == {info.name}
                assert {trial.attempt.queue for trial in done} == {info.queue}
        assert accounts.refused() == []
        a, b = urls
        for url, mine, others in ((a, ours, theirs), (b, theirs, ours)):
            assert accounts.may(url, "LRANGE", mine, 0, -1)
            assert not accounts.may(url, "LRANGE", others, 0, -1)
            assert not accounts.may(url, "LPUSH", others, "noise")
        for url, name in ((a, "team-b-1"), (b, "team-a-1")):
            assert not accounts.may(url, "XRANGE", f"mqtune:x:{{{name}}}:journal", "-", "+")
        for url, mine, others in ((a, "team-a-1", "team-b-1"), (b, "team-b-1", "team-a-1")):
            monkeypatch.setenv("MQTUNE_BROKER", url)
            listed = run("list", "--broker", url)
            assert (mine in listed, others in listed) == (True, False)
            assert "slots busy" in run("fleet")
