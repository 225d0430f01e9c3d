"""The page over a broker: which accounts are enough, and that it follows what a driver writes there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
import redis
from accounts import Accounts
from click.testing import CliRunner
from fleets import worker
from test_client import NAME, AnsweringDriver
from waiting import eventually

from mqtune.backends import EmbeddedServer
from mqtune.cli import group
from mqtune.cli.ui.feed import Feeds
from mqtune.cli.ui.places import Places
from mqtune.cli.ui.steering import steer
from mqtune.cli.ui.views import fleet_page, why
from mqtune.core.errors import AccessDenied, ConfigurationError
from mqtune.core.events import START, AttemptStarted, TrialStaged
from mqtune.core.keys import DEMANDS, QUOTAS
from mqtune.core.trial import TrialId, TrialStatus
from mqtune.core.worker_info import busy_as
from mqtune.journal import Fleet
from mqtune.services.shares.demands import Demands
from mqtune.services.shares.divider import Demand
from mqtune.services.shares.quotas import Quotas


@pytest.fixture
def driver(redis_client: redis.Redis) -> Iterator[AnsweringDriver]:
    driver = AnsweringDriver(redis_client)
    yield driver
    driver.end()


@pytest.fixture
def accounts(redis_server: EmbeddedServer, driver: AnsweringDriver) -> Iterator[Accounts]:
    with contextlib.closing(Accounts(redis_server.url)) as accounts:
        yield accounts


def stage(driver: AnsweringDriver, trial: str) -> None:
    driver.journal.record(TrialStaged(trial=TrialId(trial), attempt=1, config={}, at=2.0, cursor=START).encode())


def test_a_monitors_account_is_enough_to_look(driver: AnsweringDriver, accounts: Accounts):
    places = Places([], accounts.make("monitor"), broker_alone=True)
    feeds = Feeds(places.find)
    with contextlib.closing(feeds):
        assert [(each["name"], each["trials"]) for each in places.listed().rows] == [(NAME, 2)]
        feed = feeds.get(NAME)
        stage(driver, "0003")
        eventually(lambda: len(feed.experiment.trials) == 3)
        assert feed.state == "running"
        page = fleet_page(places, feeds)
    assert page["problems"] == []
    [waiting] = page["waiting"]
    assert (waiting["experiment"], waiting["waiting"], waiting["way_out"]) == (NAME, 3, "start one: mqtune worker")
    assert accounts.refused() == []


def test_who_has_how_much_is_shown_to_a_monitor_by_name_where_the_page_shows_the_experiment(
    driver: AnsweringDriver, accounts: Accounts, redis_client: redis.Redis
):
    url = accounts.make("monitor")
    demands, quotas = Demands(redis_client, patience_s=1.0), Quotas(redis_client, patience_s=1.0)
    mine, others = busy_as(NAME), busy_as("secret")
    quotas.set("steer*", 3)
    Fleet(redis_client, patience_s=1.0).join(worker(busy={mine: 1, busy_as("undriven"): 1}, slots=8), hold_s=60)
    demands.exchange(NAME, Demand(experiment=mine, queues=["q"], wanted=8, running=1, priority="high"))
    demands.exchange("secret", Demand(experiment=others, queues=["q"], wanted=8, running=5, weight=2.0))
    places = Places([], url, broker_alone=True)

    with contextlib.closing(Feeds(places.find)) as feeds:
        page = fleet_page(places, feeds)

    assert page["problems"] == []
    names = ["experiment", "priority", "share", "running", "wanted", "may_run", "quotas"]
    assert [tuple(each[name] for name in names) for each in page["shares"]] == [
        ("", "normal", 2.0, 5, 8, 4, ""),
        (NAME, "high", 1.0, 1, 8, 3, "steer*"),
        ("", "", 0.0, 1, 0, 0, ""),
    ]
    assert [(each["pattern"], each["slots"], each["running"]) for each in page["quotas"]] == [("steer*", 3, 0)]
    assert others not in str(page["shares"])
    # How much waits in queues is asked too, and not for this account to know.
    assert [each for each in accounts.refused() if DEMANDS in each or QUOTAS in each or "mqtune:quota:" in each] == []


def test_a_trial_and_an_experiment_say_why_they_wait_as_the_command_line_does(
    driver: AnsweringDriver, redis_server: EmbeddedServer
):
    places = Places([], redis_server.url, broker_alone=True)
    with contextlib.closing(Feeds(places.find)) as feeds:
        feed = feeds.get(NAME)
        waits = why(places, feeds, feed, "0002")
        started = AttemptStarted(trial=TrialId("0001"), attempt=1, worker="w@h", host="h", devices=[], at=3.0)
        driver.journal.record(started.encode())
        eventually(lambda: feed.experiment.counts[TrialStatus.RUNNING] == 1)
        gone = why(places, feeds, feed, "0001")
        driver.leave()
        alone = CliRunner().invoke(group, ["why", NAME, "--broker", redis_server.url])
        left = why(places, feeds, feed)

    assert str(waits["text"]).startswith("trial 0002 has been waiting for ")
    assert str(gone["text"]).endswith("which is not connected: within seconds the trial is queued again")
    assert str(left["text"]).startswith(f"{NAME} has no driver, so nothing new starts")
    seconds = re.compile(r"\d+ s")
    assert seconds.sub("", alone.stdout) == seconds.sub("", f"{left['text']}\n  → {left['way_out']}\n")


def test_an_operators_account_is_enough_to_steer_and_a_monitors_is_not(driver: AnsweringDriver, accounts: Accounts):
    wanted = {"name": NAME, "verb": "pause", "trial": "0001"}
    operator, monitor = (Places([], accounts.make(role), broker_alone=True) for role in ("operator", "monitor"))

    assert steer(operator, wanted) == {"text": "trial 0001 is paused", "done": True, "refused": False}
    with pytest.raises(AccessDenied):
        steer(monitor, wanted)
    with pytest.raises(ConfigurationError, match="is not an action"):
        steer(operator, {**wanted, "verb": "delete"})
    with pytest.raises(ConfigurationError, match="not a whole number"):
        steer(operator, {"name": NAME, "verb": "set", "max_trials": True})
    many = {"name": NAME, "verb": "pause", "trials": ["0001", "0002"]}
    assert steer(operator, many) == {"text": "pause: done for 2 of 2 trials", "done": True, "refused": False}
    asked = len(driver.seen)
    # What is not there is not asked for.
    assert "done for 0 of 0" in str(steer(operator, {**many, "trials": ["0009"]})["text"])
    assert len(driver.seen) == asked
    refused = steer(operator, {**many, "verb": "fail", "trials": ["0002"]})
    assert str(refused["text"]).startswith("fail: done for 0 of 1 trials; can't fail trial 0002: ")
    assert refused["refused"] is True
    driver.leave()
    assert "no driver runs" in str(steer(operator, {**wanted, "trial": "0002"})["text"])
    assert str(steer(operator, many)["text"]).count("no driver runs") == 2
    accounts.refused()
