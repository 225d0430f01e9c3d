"""An experiment under the accounts that ``mqtune acl`` prints, and what these accounts are refused."""

from __future__ import annotations

import contextlib
import json
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
from faces import run, running
from fleets import worker
from hostile import remote
from pair import Tune, both_run, counting, tuners
from running import running_worker
from servers import EACH_SERVER, started_on
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer, find_binary
from mqtune.cli import group
from mqtune.core.errors import (
    AccessDenied,
    BrokerRefused,
    BrokerUnavailable,
    ConfigurationError,
    InsufficientResources,
    LogUnavailable,
)
from mqtune.core.events import ExperimentEnded, Requested, decode_event
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
from mqtune.core.trial import CheckpointId, Intent, TrialId, TrialStatus
from mqtune.journal import (
    ROLES,
    Assignment,
    Claim,
    Fleet,
    Follower,
    LogExchange,
    Order,
    Quota,
    Quotas,
    RedisJournal,
    account,
    connect,
    identify,
    password_hash,
    rules_of,
)
from mqtune.journal.script import script
from mqtune.results.logs import AttemptOutput
from mqtune.testing.backends.world import drive
from mqtune.trainable import KEY_VARIABLE

TEAM = "team-a-*"
OURS, THEIRS = ExperimentKeys("team-a-1"), ExperimentKeys("team-b-1")
REMOTE = "/0.mqtune.pidbox"
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
    """The same with a worker of two slots, for team a alone."""
    log = tmp_path_factory.mktemp("crew") / "worker.log"
    options = ["--gpus", "0", "--slots", "2", "--cpus", "10", "--experiments", TEAM, "--accept-code"]
    with running_worker(team.worker, log, *options, name="crew", environment={KEY_VARIABLE: KEY}):
        yield team


@pytest.fixture
def tune(crew: Team, tmp_path: Path) -> Iterator[Tune]:
    with tuners(crew.driver, tmp_path / "store") as build:
        yield build


# What must work.


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
    assert not [record for record in caplog.records if "only the end is known" in record.message]
    assert crew.accounts.refused() == []


def test_an_experiment_in_lockstep_whose_driver_brings_its_code_is_followed_by_a_monitor(
    crew: Team, tune: Tune, monkeypatch: pytest.MonkeyPatch
):
    crew.accounts.refused()
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    options: dict[str, Any] = {
        "space": {"x": mqtune.uniform(0, 1)},
        "searcher": None,
        "process": mqtune.Process(sync="lockstep", bundle=Path(trainables.__file__).parent),
        "max_trials": 3,
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

    assert [trial.reports for trial in tuner.get_trials()] == [9, 9, 9]
    assert all(trial.attempts[0].environment["bundle"] for trial in tuner.get_trials())
    assert crew.accounts.refused() == []


def test_trials_with_two_seats_run_under_the_accounts_of_a_team(crew: Team, tune: Tune):
    crew.accounts.refused()
    tuner = tune(
        trainables.steady,
        name="team-a-gang",
        space={"x": mqtune.uniform(0, 1)},
        searcher=None,
        resources=mqtune.Resources(cpus=5, seats=2),
        max_trials=2,
    )
    tuner.run()

    trials = tuner.get_trials()
    assert [(trial.status, trial.reports, len(trial.attempt.seats)) for trial in trials] == [
        (TrialStatus.COMPLETED, 9, 1)
    ] * 2
    assert crew.accounts.refused() == []


def test_why_names_the_quota_that_holds_an_experiment_or_says_that_the_account_can_not_see_it(crew: Team, tune: Tune):
    admin: Any = crew.accounts.admin
    without_counts = [rule for rule in rules_of("monitor", experiments=TEAM) if "zcount" not in rule.commands]
    admin.execute_command(*account("old", password_hash("old"), without_counts).split())
    crew.accounts.refused()
    admin.hset(QUOTAS, TEAM, 1)
    admin.zadd(quota_key(TEAM), {"team-a-other/0001": 9e15})
    try:
        tuner = tune(saving.CountsInDict, counting(), name="team-a-held", store=None)
        drive(tuner, lambda: tuner.get_trials() and tuner.get_trials()[0].status is TrialStatus.STAGED)

        held = "quota", f"a slot is free, and a quota is used up: 1 of 1 for {TEAM}"
        for url in (crew.monitor, crew.operator, crew.driver):
            # A worker imports the code first, as a driver's account may see; without a driver that would be the reason.
            drive(tuner, lambda url=url: why(tuner, url) == held)
        assert not [each for each in crew.accounts.refused() if "quota" in each]
        unread = "a slot is free, and takes it unless a quota is used up, which this account may not read"
        drive(tuner, lambda: why(tuner, crew.accounts.url_of("old", "old")) == ("starting", unread))
    finally:
        admin.delete(QUOTAS, quota_key(TEAM))


def test_each_account_may_list_quotas_and_what_runs_under_them(team: Team):
    admin: Any = team.accounts.admin
    admin.hset(QUOTAS, "team-b-1", 3)
    try:
        for url in (team.driver, team.worker, team.operator, team.monitor, team.flower):
            with contextlib.closing(connect(url)) as client:
                assert Quotas(client, patience_s=5).all() == [Quota("team-b-1", 3, 0)]
    finally:
        admin.delete(QUOTAS)


def why(tuner: mqtune.Tuner, url: str) -> tuple[str, str]:
    """Return the cause that ``mqtune why`` has, and its text behind how long the first trial has waited; or its error."""
    said = mqtune_command("why", tuner.name, "1", "--json", MQTUNE_BROKER=url)
    if said.exception is not None:
        # A busy machine may not reach its server in time.
        return "failed", str(said.exception)
    found = json.loads(said.stdout)
    return found["cause"], found["text"].partition(": ")[2]


def test_a_driver_may_drain_a_worker(team: Team):
    team.accounts.refused()
    with (
        contextlib.closing(connect(team.worker)) as of_worker,
        contextlib.closing(connect(team.driver)) as of_driver,
    ):
        info, there = worker("drained"), Fleet(of_worker, patience_s=5)
        there.join(info, 60)
        Fleet(of_driver, patience_s=5).drain(info)
        assert there.keep(info, 60), "it is told"
        there.leave(info.name)

    assert team.accounts.refused() == []


def test_an_experiment_of_others_gets_no_slot_of_a_team(crew: Team, tmp_path: Path):
    everyone = crew.accounts.make("driver", "everyone")
    options = {"space": {"x": mqtune.uniform(0, 1)}, "searcher": None, "run": mqtune.RunOptions(queue_trials=False)}
    with tuners(everyone, tmp_path / "store") as build:
        tuner = build(trainables.steady, name="team-b-refused", **options)
        with pytest.raises(InsufficientResources, match="no worker is connected"):
            tuner.step()


def test_the_driver_of_a_team_is_told_at_once_that_it_may_not_drive_others_experiments(tune: Tune):
    tuner = tune(trainables.steady, space={"x": mqtune.uniform(0, 1)}, searcher=None, name="team-b-other")

    began = time.monotonic()
    with pytest.raises(AccessDenied, match=r"account may not do this.*mqtune acl"):
        tuner.step()

    assert time.monotonic() - began < 20


# What must not.


#: What no account but the operator's own may do.
NOBODY = {
    "FLUSHALL": ("FLUSHALL",),
    "FLUSHDB": ("FLUSHDB",),
    "CONFIG GET": ("CONFIG", "GET", "*"),
    "CONFIG SET": ("CONFIG", "SET", "maxmemory", "1"),
    "KEYS": ("KEYS", "*"),
    "SCAN": ("SCAN", "0"),
    "ACL": ("ACL", "LIST"),
    "CLIENT KILL": ("CLIENT", "KILL", "TYPE", "normal"),
    "CLIENT LIST": ("CLIENT", "LIST"),
    "SHUTDOWN": ("SHUTDOWN", "NOSAVE"),
    "SCRIPT FLUSH": ("SCRIPT", "FLUSH"),
    "FUNCTION": ("FUNCTION", "LIST"),
    "MONITOR": ("MONITOR",),
    "SLOWLOG": ("SLOWLOG", "GET"),
    "REPLICAOF": ("REPLICAOF", "NO", "ONE"),
    "MODULE": ("MODULE", "LIST"),
    "SWAPDB": ("SWAPDB", "0", "1"),
    "their definition": ("HGET", THEIRS.meta, "definition"),
    "their journal": ("XRANGE", THEIRS.journal, "-", "+"),
    "an entry in their journal": ("XADD", THEIRS.journal, "*", "e", "x"),
    "their reports, live": ("SUBSCRIBE", THEIRS.metrics),
    "reports in their name": ("PUBLISH", THEIRS.metrics, "x"),
    "their trial": ("HGET", THEIRS.trial("0001"), "assignment"),
    "their trial's intent": ("HSET", THEIRS.trial("0001"), "intent", "stop"),
    "their trial's lease": ("ZADD", THEIRS.leases, "0", "0001"),
    "their checkpoint": ("HGET", THEIRS.checkpoints, "c"),
    "their checkpoint's data": ("HSET", THEIRS.checkpoints, "c", "x"),
    "their code": ("HGET", THEIRS.code, "digest"),
    "code in their name": ("HSET", THEIRS.code, "digest", "x"),
    "their driver": ("HGET", THEIRS.driver, "epoch"),
    "their driver's lock": ("HSET", THEIRS.driver, "epoch", "9"),
    "a remote command": ("PUBLISH", REMOTE, "{}"),
    "a question for their output": ("RPUSH", THEIRS.asked("w"), "x"),
    "an answer to them": ("RPUSH", THEIRS.log("token"), "x"),
    "their output": ("LPOP", THEIRS.log("token")),
    "their questions": ("LPOP", THEIRS.asked("w")),
    "their key by a script": ("EVAL", "return redis.call('HGET', KEYS[1], 'intent')", 1, THEIRS.trial("0001")),
    "a key by a script that hides it": (
        "EVAL",
        "return redis.call('HSET', ARGV[1], 'intent', 'stop')",
        0,
        THEIRS.trial("0001"),
    ),
    "their channel by a script": ("EVAL", "return redis.call('PUBLISH', ARGV[1], 'x')", 0, THEIRS.metrics),
    "other programs' messages": ("HGETALL", "unacked"),
    "one of them": ("HGET", "unacked", "id"),
    "the list of them": ("ZRANGE", "unacked_index", "0", "-1"),
    "an end of one": ("HDEL", "unacked", "id"),
    "FLUSHALL by a script": ("EVAL", "return redis.call('FLUSHALL')", 0),
}
#: Of these, what is other programs'.
MESSAGES = ("one of them", "the list of them", "an end of one")
WORKER = {
    "its driver": ("HGET", OURS.driver, "holder"),
    "its driver's epoch": ("HSET", OURS.driver, "epoch", "99"),
    "its driver's epoch by a script": ("EVAL", "return redis.call('HINCRBY', ARGV[1], 'epoch', 1)", 0, OURS.driver),
    "code": ("HSET", OURS.code, "digest", "x"),
    "an end of its code": ("DEL", OURS.code),
    "a look into its journal": ("XRANGE", OURS.journal, "-", "+"),
    "a cut of its journal": ("XTRIM", OURS.journal, "MAXLEN", "0"),
    "an end of its journal": ("DEL", OURS.journal),
    "a trial that is gone": ("DEL", OURS.trial("0001")),
    "another worker's control channel": ("PUBLISH", control_channel("other@host"), "x"),
    "the same by a script": ("EVAL", "return redis.call('PUBLISH', ARGV[1], 'x')", 0, control_channel("other@host")),
    "a drain of another worker": ("SET", drain_key("other@host"), "0"),
    "others' queue": ("BRPOP", QUEUE, "0.01"),
    "output that its driver asked for": ("LPOP", OURS.log("token")),
    "a question to another worker": ("RPUSH", OURS.asked("w"), "x"),
    "a task for others": ("LPUSH", QUEUE, "{}"),
    "a name in the list of experiments": ("ZADD", EXPERIMENTS, "0", "team-b-1"),
    "what runs under others' quota": ("ZADD", quota_key("team-b-*"), "1", "team-b-1/0001"),
    "the quota of one of them": ("ZADD", quota_key("team-b-1"), "1", "team-b-1/0001"),
    "Celery's events": ("PSUBSCRIBE", "/0.mqtune-events/*"),
}
MONITOR = {
    "its driver": ("HGET", OURS.driver, "holder"),
    "an entry in its journal": ("XADD", OURS.journal, "*", "e", "x"),
    "its trial's intent": ("HSET", OURS.trial("0001"), "intent", "stop"),
    "its trial's config": ("HGET", OURS.trial("0001"), "assignment"),
    "its checkpoint": ("HGET", OURS.checkpoints, "c"),
    "its code": ("HGET", OURS.code, "digest"),
    "code": ("HSET", OURS.code, "digest", "x"),
    "a script": ("EVAL", "return redis.call('XADD', ARGV[1], '*', 'e', 'x')", 0, OURS.journal),
    "what waits in its queue": ("LRANGE", f"{QUEUE}@{TEAM}", "0", "-1"),
    "how many wait in everybody's queue": ("LLEN", QUEUE),
    "how many of others' attempts wait": ("ZCARD", THEIRS.staged),
    "a task": ("LPUSH", QUEUE, "{}"),
    "a task that it takes": ("BRPOP", QUEUE, "0.01"),
    "a worker's place": ("SET", worker_key("w"), "x"),
    "a worker's heartbeat": ("ZADD", WORKERS, "0", "w"),
    "a worker's end": ("SET", drain_key("w"), "0"),
    "the fleet's news": ("XADD", FLEET, "*", "worker", "w"),
    "a worker's control channel": ("PUBLISH", control_channel("w"), "x"),
    "a question for output": ("RPUSH", OURS.asked("w"), "x"),
    "output": ("LPOP", OURS.log("token")),
    "an event in Celery's name": ("PUBLISH", "/0.mqtune-events/task-failed", "x"),
}
#: All that a monitor may not, but a request, which is an entry in the journal; and what a request is not.
OPERATOR = {
    **{what: command for what, command in MONITOR.items() if what not in ("an entry in its journal", "a script")},
    "its driver's lock": ("HSET", OURS.driver, "epoch", "99"),
    "a claim": ("ZADD", OURS.leases, "0", "0001"),
    "a trial that is to run": ("ZADD", OURS.staged, "0", "0001"),
    "a cut of its journal": ("XTRIM", OURS.journal, "MAXLEN", "0"),
    "an end of its journal": ("DEL", OURS.journal),
    "an end of its requests": ("DEL", OURS.requests),
    "a request to others": ("HSET", THEIRS.requests, "id", "1-0"),
}
DRIVER = {
    "what waits in everybody's queue": ("LRANGE", QUEUE, "0", "-1"),
    "what waits in another team's queue": ("LRANGE", f"{QUEUE}@team-b-*", "0", "-1"),
    "a task for another team": ("LPUSH", f"{QUEUE}@team-b-*", "{}"),
    "a task for everybody": ("LPUSH", QUEUE, "{}"),
    "an event in Celery's name but that an attempt was lost": ("PUBLISH", "/0.mqtune-events/task.failed", "x"),
    "others' heartbeat": ("ZADD", WORKERS, "0", "w"),
    "a worker's place": ("SET", worker_key("w"), "x"),
    "a task that it takes": ("BRPOP", QUEUE, "0.01"),
}


@pytest.mark.parametrize(
    ("role", "own"),
    [("worker", WORKER), ("operator", OPERATOR), ("monitor", MONITOR), ("driver", DRIVER), ("flower", {})],
)
def test_an_account_may_not(team: Team, role: str, own: dict[str, tuple[Any, ...]]):
    url = getattr(team, role)
    # Flower's is for all experiments, and for remote commands.
    refused = {what: command for what, command in NOBODY.items() if role != "flower" or what in MESSAGES}

    assert [what for what, command in {**refused, **own}.items() if team.accounts.may(url, *command)] == []


def test_a_driver_may_show_what_a_worker_that_is_gone_can_not(team: Team):
    assert team.accounts.may(team.driver, "PUBLISH", "/0.mqtune-events/task.lost", "x")


def test_an_operator_reads_output_and_an_account_that_may_not_is_told_which_one_may(team: Team):
    operator, monitor = team.accounts.make("operator", "on-call"), team.accounts.make("monitor", "looking")

    for url, error in ((operator, LogUnavailable), (monitor, AccessDenied)):
        with (
            contextlib.closing(connect(url)) as client,
            pytest.raises(error) as refused,
        ):
            LogExchange(client, "team-b-1").ask("gone@far", TrialId("0001"), 1, "stdout", 0)
    assert str(refused.value).isprintable(), "what was sent is bytes"
    assert "is for the accounts of drivers, and of operators for all experiments" in str(refused.value)


def test_the_scripts_of_drivers_are_refused_to_a_worker_also_by_their_hash(team: Team):
    trial, event = TrialId("0001"), b"event"
    with contextlib.closing(connect(team.driver)) as of_driver, contextlib.closing(connect(team.worker)) as of_worker:
        driver, worker = (RedisJournal(client, "team-a-scripts", patience_s=5) for client in (of_driver, of_worker))
        driver.lock("driver", "a driver", 60)
        driver.record(event, definition=b"definition")
        driver.stage(trial, 1, Assignment({}), event)
        assert driver.intend(trial, 1, Intent.STOP, event, event) == "unclaimed"

        tries = {
            "lock": lambda: worker.lock("worker", "a worker", 60, dead="a driver"),
            "record": lambda: worker.record(event),
            "stage": lambda: worker.stage(trial, 2, Assignment({}), event),
            "intend": lambda: worker.intend(trial, 1, Intent.STOP, event, event),
            "look": lambda: worker.look([(trial, 1)], 60),
            "lose": lambda: worker.lose(trial, 1, "any", event),
            "order": lambda: worker.order([Order.save(trial, 1, 1)]),
            "close": lambda: worker.close_trial(trial, 1, event),
            "drop": lambda: worker.drop_checkpoints([], event),
        }
        for name, attempt in tries.items():
            with pytest.raises(AccessDenied):
                attempt()
            assert script(name) is not None
        assert worker.definition() == b"definition", "which a worker needs"
        driver.unlock("driver")


def test_all_but_a_monitor_may_make_requests_and_an_operator_may_do_nothing_else(team: Team):
    trial, event, claim = TrialId("0001"), b"event", Claim(TrialId("0001"), 1, "token")
    with contextlib.ExitStack() as stack:

        def journal(url: str) -> RedisJournal:
            return RedisJournal(stack.enter_context(contextlib.closing(connect(url))), "team-a-asked", patience_s=5)

        driver, operator = journal(team.driver), journal(team.operator)
        driver.lock("driver", "a driver", 60)
        driver.record(event, definition=b"definition")
        driver.stage(trial, 1, Assignment({}), event)

        request = Requested(id="r1", action="stop", trial=trial, arguments={}, by="ada", at=1.0)
        entry = operator.request(request)
        assert [journal(url).request(request) for url in (team.worker, team.driver, team.operator)] == [entry] * 3
        with pytest.raises(AccessDenied):
            journal(team.monitor).request(request)
        assert operator.read("0-0", count=10)[-1].id == entry
        for attempt in (
            lambda: operator.lock("operator", "an operator", 60, dead="a driver"),
            lambda: operator.record(event),
            lambda: operator.stage(trial, 2, Assignment({}), event),
            lambda: operator.claim(claim, "w", 60, event),
            lambda: operator.renew([claim], 60),
            lambda: operator.end(claim, event),
            lambda: operator.intend(trial, 1, Intent.STOP, event, event),
            lambda: operator.put_checkpoint(claim, CheckpointId("m-0001-1-1"), b"data"),
            lambda: operator.erase([trial]),
        ):
            with pytest.raises(AccessDenied):
                attempt()
        driver.unlock("driver")


# Celery's remote control, and Flower.


def test_only_a_monitor_that_is_allowed_to_may_send_remote_commands(crew: Team):
    eventually(lambda: "pong" in run(crew.flower, "inspect", "ping").stdout, 60)

    refused = run(crew.monitor, "inspect", "ping")
    assert refused.returncode != 0
    assert "pong" not in refused.stdout
    assert PASSWORDS["monitor"] not in refused.stderr


def test_a_worker_without_remote_control_hears_no_command_and_still_obeys_its_driver(tmp_path: Path):
    options = ["--gpus", "0", "--slots", "1", "--no-remote-control"]
    with EmbeddedServer.start(tmp_path / "server", binary=find_binary()) as server:
        url = server.url
        with (
            running_worker(url, tmp_path / "deaf.log", *options, name="deaf") as deaf,
            tuners(url, tmp_path / "store") as build,
        ):
            tuner = build(saving.Counts, counting(), name="deaf", resources=mqtune.Resources())
            drive(tuner, lambda: tuner.get_trials() and tuner.get_trials()[0].attempt.reports > 1)
            (trial,) = tuner.get_trials()
            with contextlib.closing(connect(url)) as client:
                assert client.publish(REMOTE, remote("shutdown")) == 0, "nobody listens"
            assert "pong" not in run(url, "inspect", "ping").stdout

            tuner.trial(trial).stop()
            drive(tuner, lambda: trial.status.is_terminal)
            assert deaf.poll() is None


# The command.


def mqtune_command(*arguments: str, given: str = "", **environment: str) -> Result:
    return CliRunner(env=environment).invoke(group, arguments, input=given)


def test_what_the_command_prints_makes_the_account(team: Team):
    printed = mqtune_command("acl", "worker", "--user", "printed", "--password-stdin", given="hush hush\n")

    assert "hush" not in printed.stdout + printed.stderr
    for line in printed.stdout.splitlines():
        team.accounts.admin.execute_command(*shlex.split(line))
    url = team.accounts.url_of("printed", "hush hush")
    assert team.accounts.may(url, "HGET", THEIRS.meta, "definition"), "it is for all experiments"
    assert not team.accounts.may(url, "FLUSHALL")


def test_a_password_comes_from_the_environment_or_is_made_and_said_beside_the_rules(team: Team):
    of_environment = mqtune_command("acl", "monitor", MQTUNE_ACL_PASSWORD="from here")
    made = mqtune_command("acl", "monitor")

    assert f"#{password_hash('from here')} " in of_environment.stdout
    assert of_environment.stderr == ""
    (password,) = re.findall(r"shown only here: (\S+)", made.stderr)
    assert f"#{password_hash(password)} " in made.stdout
    assert password not in made.stdout


def test_the_lines_make_an_acl_file_that_a_server_loads(tmp_path: Path):
    lines = ["user default off", *(account(role, password_hash("x"), rules_of(role), aclfile=True) for role in ROLES)]
    (tmp_path / "users.acl").write_text("\n".join(lines) + "\n")
    binary, address = find_binary().path, tmp_path / "s"
    command = [str(binary), "--port", "0", "--unixsocket", str(address), "--aclfile", str(tmp_path / "users.acl")]
    with running([*command, "--dir", str(tmp_path), "--save", ""], {}, tmp_path / "server.log"):

        def answers() -> bool:
            with contextlib.suppress(BrokerUnavailable):
                connect(f"unix://driver:x@{address}").close()
                return True
            return False

        eventually(answers, 30)
        with pytest.raises(BrokerRefused):
            connect(f"unix://driver:wrong@{address}")


REFUSED = {
    "driver --remote-control": "a driver sends no remote commands",
    "worker --experiments team/a": "'team/a' can't be names of experiments",
    "worker --user a:b": "'a:b' can't name an account",
    "worker --password-hash secret": "64 hexadecimal digits",
    "worker --password-stdin": "standard input is empty",
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_makes_no_account_is_refused_in_one_line(asked: str):
    refused = mqtune_command("acl", *asked.split())

    assert refused.stdout == ""
    assert isinstance(refused.exception, ConfigurationError)
    assert REFUSED[asked] in str(refused.exception)
