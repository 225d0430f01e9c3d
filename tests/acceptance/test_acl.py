"""An experiment under the accounts that ``mqtune fleet acl`` prints, and what these accounts are refused."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trainables
import trainables_saving as saving
from accounts import PASSWORDS, Accounts
from click.testing import CliRunner, Result
from faces import run
from pair import Tune, both_run, counting, tuners
from running import running_worker
from servers import EACH_SERVER, started_on
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer
from mqtune.cli import group
from mqtune.core.errors import AccessDenied, ConfigurationError
from mqtune.core.events import ExperimentEnded, decode_event
from mqtune.core.keys import (
    EXPERIMENTS,
    FLEET,
    QUOTAS,
    WORKERS,
    ExperimentKeys,
    control_channel,
    drain_key,
    quota_key,
    worker_key,
)
from mqtune.core.trial import TrialStatus
from mqtune.journal import Fleet, connect, identify
from mqtune.results import Follower
from mqtune.results.logs import AttemptOutput
from mqtune.services.ownership.acl import password_hash
from mqtune.testing.backends.world import drive
from mqtune.trainable import KEY_VARIABLE

TEAM = "team-a-*"
OURS, THEIRS = ExperimentKeys("team-a-1"), ExperimentKeys("team-b-1")
QUEUE = "mqtune-0-2.gpu0.cpu1"
KEY = "the key of team a's code"


class Team(NamedTuple):
    """A server with the accounts of team a, and one for looking at and controlling everything."""

    accounts: Accounts
    driver: str
    worker: str
    operator: str
    monitor: str
    flower: str


@pytest.fixture(scope="module", params=EACH_SERVER)
def team(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    folder = tmp_path_factory.mktemp("acl")
    with (
        EmbeddedServer.start(folder, binary=started_on(request)) as server,
        contextlib.closing(Accounts(server.url)) as accounts,
    ):
        # As any driver for all experiments does; a team's is refused to.
        identify(accounts.admin, patience_s=5)
        yield Team(
            accounts,
            accounts.make("driver", experiments=TEAM),
            accounts.make("worker", experiments=TEAM),
            accounts.make("operator", experiments=TEAM),
            accounts.make("monitor", experiments=TEAM),
            accounts.make("monitor", "flower", remote_control=True),
        )


@pytest.fixture(scope="module")
def crew(team: Team, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    log = tmp_path_factory.mktemp("crew") / "worker.log"
    options = ["--gpus", "0", "--slots", "2", "--cpus", "10", "--experiments", TEAM, "--accept-code"]
    with running_worker(team.worker, log, *options, name="crew", environment={KEY_VARIABLE: KEY}):
        yield team


@pytest.fixture
def tune(crew: Team, tmp_path: Path) -> Iterator[Tune]:
    with tuners(crew.driver, tmp_path / "store") as build:
        yield build


def test_a_whole_experiment_runs_counts_under_its_quotas_and_those_of_all_and_nothing_that_it_does_is_refused(
    crew: Team, tune: Tune, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    admin: Any = crew.accounts.admin
    quotas = ["team-a-whole", "team-a-w*", TEAM, "team-*", "t*", "*"]
    crew.accounts.refused()
    admin.hset(QUOTAS, mapping=dict.fromkeys(quotas, 10))
    try:
        tuner = tune(saving.CountsInDict, counting(), counting(), name="team-a-whole", store=None)
        first, second = both_run(tuner)
        assert [admin.zcard(quota_key(quota)) for quota in quotas] == [2] * len(quotas)

        tuner.trial(first).pause()
        drive(tuner, lambda: first.status is TrialStatus.PAUSED)
        tuner.trial(first).resume()
        drive(tuner, lambda: first.status is TrialStatus.RUNNING and first.attempt.reports > 1)
        tuner.trial(first).save()
        drive(tuner, lambda: len(first.checkpoints) > 0)
        tuner.trial(second).stop()
        tuner.trial(first).abandon("enough")
        drive(tuner, lambda: first.status.is_terminal and second.status.is_terminal)
        assert not any(admin.zcard(quota_key(quota)) for quota in quotas)
    finally:
        admin.delete(QUOTAS)
    # As on a machine that doesn't share the worker's folder.
    monkeypatch.setattr(AttemptOutput, "is_here", False)
    assert tuner.trial(first).stdout() == tuner.trial(second).stderr() == []
    tuner.close()

    assert (first.status, second.status) == (TrialStatus.ABANDONED, TrialStatus.EARLY_STOPPED)
    assert not [record for record in caplog.records if "only the end of its output can be read" in record.message]
    assert crew.accounts.refused() == []


def test_gangs_in_lockstep_whose_driver_brings_their_code_are_followed_by_a_monitor(
    crew: Team, tune: Tune, monkeypatch: pytest.MonkeyPatch
):
    crew.accounts.refused()
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    options: dict[str, Any] = {
        "space": {"x": mqtune.uniform(0, 1)},
        "searcher": None,
        "process": mqtune.Process(sync="lockstep", bundle=Path(trainables.__file__).parent),
        "resources": mqtune.Resources(cpus=5, seats=2),
        "max_trials": 2,
    }
    tuner = tune(trainables.steady, name="team-a-lockstep", **options)
    eventually(lambda: tuner.step(0.1) or tuner.get_trials(), 30)
    with contextlib.closing(Follower(crew.monitor, tuner.name)) as follower:
        tuner.run()
        seen = []
        eventually(
            lambda: seen.extend(follower.read(1)) or isinstance(decode_event(seen[-1].data), ExperimentEnded), 30
        )
    with contextlib.closing(connect(crew.monitor)) as client:
        assert [info.name.partition("@")[0] for info in Fleet(client, patience_s=5).workers()] == ["crew"]

    assert [(trial.reports, len(trial.attempt.further_tasks)) for trial in tuner.get_trials()] == [(9, 1)] * 2
    assert all(trial.attempts[0].environment["bundle"] for trial in tuner.get_trials())
    assert crew.accounts.refused() == []


def test_the_driver_of_a_team_is_told_at_once_that_it_may_not_drive_others_experiments(tune: Tune):
    tuner = tune(trainables.steady, space={"x": mqtune.uniform(0, 1)}, searcher=None, name="team-b-other")

    began = time.monotonic()
    with pytest.raises(AccessDenied, match=r"account may not do this.*mqtune fleet acl"):
        tuner.step()

    assert time.monotonic() - began < 20


#: Commands that only Redis's own operator may send. The last line is about the messages of other programs.
NOBODY = f"""
FLUSHALL; CONFIG SET maxmemory 1; ACL LIST; SHUTDOWN NOSAVE; REPLICAOF NO ONE; EVAL "return redis.call('FLUSHALL')" 0
XRANGE {THEIRS.journal} - +; SUBSCRIBE {THEIRS.metrics}; HSET {THEIRS.trial("0001")} intent stop; ZADD {THEIRS.leases} 0 0001
HSET {THEIRS.checkpoints} c x; HSET {THEIRS.code} digest x; HSET {THEIRS.driver} epoch 9; PUBLISH /0.mqtune.pidbox x
RPUSH {THEIRS.log("token")} x; LPOP {THEIRS.log("token")}; HGETALL unacked
EVAL "return redis.call('HGET', KEYS[1], 'intent')" 1 {THEIRS.trial("0001")}
EVAL "return redis.call('HSET', ARGV[1], 'intent', 'stop')" 0 {THEIRS.trial("0001")}
EVAL "return redis.call('PUBLISH', ARGV[1], 'x')" 0 {THEIRS.metrics}
HGET unacked id; ZRANGE unacked_index 0 -1; HDEL unacked id
"""
WORKER = f"""
HGET {OURS.driver} holder; HSET {OURS.driver} epoch 99; HSET {OURS.code} digest x; XRANGE {OURS.journal} - +; DEL {OURS.journal}
PUBLISH {control_channel("other@host")} x; SET {drain_key("other@host")} 0; BRPOP {QUEUE} 0.01; LPOP {OURS.log("token")}
LPUSH {QUEUE} x; ZADD {EXPERIMENTS} 0 team-b-1; ZADD {quota_key("team-b-*")} 1 team-b-1/0001; PSUBSCRIBE /0.mqtune-events/*
"""
#: Commands that monitors and operators may not send.
LOOKER = f"""
HGET {OURS.driver} holder; HSET {OURS.trial("0001")} intent stop; HGET {OURS.trial("0001")} assignment; HGET {OURS.code} digest
LRANGE {QUEUE}@{TEAM} 0 -1; LLEN {QUEUE}; LPUSH {QUEUE} x; BRPOP {QUEUE} 0.01; SET {worker_key("w")} x; XADD {FLEET} * worker w
PUBLISH {control_channel("w")} x; LPOP {OURS.log("token")}; PUBLISH /0.mqtune-events/task-failed x
"""
MONITOR = f"""{LOOKER}
XADD {OURS.journal} * e x; EVAL "return redis.call('XADD', ARGV[1], '*', 'e', 'x')" 0 {OURS.journal}
"""
#: A request is an entry in the journal. These commands are not requests.
OPERATOR = f"""{LOOKER}
HSET {OURS.driver} epoch 99; ZADD {OURS.leases} 0 0001; ZADD {OURS.staged} 0 0001; XTRIM {OURS.journal} MAXLEN 0
DEL {OURS.journal}; DEL {OURS.requests}; HSET {THEIRS.requests} id 1-0
"""
DRIVER = f"""
LRANGE {QUEUE} 0 -1; LPUSH {QUEUE}@team-b-* x; LPUSH {QUEUE} x; PUBLISH /0.mqtune-events/task.failed x; ZADD {WORKERS} 0 w
SET {worker_key("w")} x; BRPOP {QUEUE} 0.01
"""


@pytest.mark.parametrize(
    ("role", "commands"),
    [
        ("worker", NOBODY + WORKER),
        ("operator", NOBODY + OPERATOR),
        ("monitor", NOBODY + MONITOR),
        ("driver", NOBODY + DRIVER),
        # It is for all experiments, and for remote commands.
        ("flower", NOBODY.splitlines()[-1]),
    ],
)
def test_an_account_may_not(team: Team, role: str, commands: str):
    url, each = getattr(team, role), [command for line in commands.splitlines() for command in line.split("; ")]
    assert [command for command in filter(None, each) if team.accounts.may(url, *shlex.split(command))] == []


def test_a_driver_may_drain_a_worker_and_show_what_one_that_is_gone_can_not(team: Team):
    assert team.accounts.may(team.driver, "SET", drain_key("w@h"), "0")
    assert team.accounts.may(team.driver, "PUBLISH", "/0.mqtune-events/task.lost", "x")


def test_only_a_monitor_that_is_allowed_to_may_send_remote_commands(crew: Team):
    eventually(lambda: "pong" in run(crew.flower, "inspect", "ping").stdout, 60)

    refused = run(crew.monitor, "inspect", "ping")
    assert refused.returncode != 0
    assert "pong" not in refused.stdout
    assert PASSWORDS["monitor"] not in refused.stderr


def mqtune_command(*arguments: str, given: str = "", **environment: str) -> Result:
    return CliRunner(env=environment).invoke(group, arguments, input=given)


def test_what_the_command_prints_makes_the_account_with_a_given_password_or_one_that_is_shown_once(team: Team):
    made = mqtune_command("fleet", "acl", "monitor")
    (password,) = re.findall(r"shown only here: (\S+)", made.stderr)
    assert f"#{password_hash(password)} " in made.stdout
    assert password not in made.stdout
    of_environment = mqtune_command("fleet", "acl", "monitor", MQTUNE_ACL_PASSWORD="from here")
    assert (f"#{password_hash('from here')} " in of_environment.stdout, of_environment.stderr) == (True, "")
    printed = mqtune_command("fleet", "acl", "worker", "--user", "printed", "--password", "stdin", given="hush hush\n")
    assert "hush" not in printed.stdout + printed.stderr
    for line in printed.stdout.splitlines():
        team.accounts.admin.execute_command(*shlex.split(line))
    url = team.accounts.url_of("printed", "hush hush")
    assert team.accounts.may(url, "HGET", THEIRS.meta, "definition"), "it is for all experiments"
    assert not team.accounts.may(url, "FLUSHALL")


def test_what_makes_no_account_is_refused_in_one_line():
    for asked, words in (
        ("driver --remote-control", "a driver sends no remote commands"),
        ("worker --user a:b", "'a:b' can't name an account"),
        ("worker --password sha256:secret", "64 hexadecimal digits"),
        ("worker --password stdin", "standard input is empty"),
        ("worker --password hunter2", "takes stdin or sha256:HEX, not the password itself"),
    ):
        refused = mqtune_command("fleet", "acl", *asked.split())
        assert refused.stdout == ""
        assert isinstance(refused.exception, ConfigurationError)
        assert words in str(refused.exception)
