"""An account whose password is changed while programs use it: each of them says so, and continues once it can log in again."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from accounts import Accounts
from click.testing import CliRunner
from driver_hosts import DriverHost
from fleets import worker
from impaired import reasons
from waiting import DEADLINE_S, eventually

from mqtune.backends import EmbeddedServer
from mqtune.cli import group
from mqtune.cli.submit import why_no_driver_slot
from mqtune.core.timing import Timing
from mqtune.journal import Fleet, RedisJournal, connect

USER = "team-driver"
OLD, NEW = "the-old-one", "the-new-one"


class Team:
    """The account of a team, a client that logs in with its first password, and an administrator."""

    def __init__(self, url: str) -> None:
        self.admin = Accounts(url)
        self.url = self.admin.make("driver", USER, OLD)
        self.client = connect(self.url, role="driver")

    def rotate(self) -> None:
        """Change the password, and end all connections."""
        self.admin.admin.execute_command("ACL", "SETUSER", USER, f"<{OLD}", f">{NEW}")
        self.admin.admin.execute_command("CLIENT", "KILL", "USER", USER)

    def restore(self) -> None:
        self.admin.admin.execute_command("ACL", "SETUSER", USER, f">{OLD}")

    def close(self) -> None:
        self.client.close()
        self.admin.admin.execute_command("ACL", "DELUSER", USER)
        self.admin.admin.close()


@pytest.fixture
def team(redis_server: EmbeddedServer, redis_client: redis.Redis) -> Iterator[Team]:
    redis_client.flushall()
    with contextlib.closing(Team(redis_server.url)) as team:
        yield team


def test_a_patient_program_goes_on_once_it_can_log_in(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    journal = RedisJournal(team.client, "x", patience_s=math.inf)
    journal.lock("driver", "a test", 60)
    team.rotate()
    caller = threading.Thread(target=lambda: journal.lock("driver", "a test", 60), daemon=True)
    caller.start()
    eventually(lambda: "refuses the login" in caplog.text)
    assert caller.is_alive()

    team.restore()
    caller.join(DEADLINE_S)

    assert not caller.is_alive()
    eventually(lambda: "Redis accepts the login after" in caplog.text)


@pytest.fixture
def host(team: Team, tmp_path: Path) -> Iterator[DriverHost]:
    timing = Timing(look_at_scripts_s=0.01, keep_lock_s=0.05, lock_s=0.3)
    with contextlib.closing(DriverHost(team.client, tmp_path / "host", timing=timing)) as host:
        yield host


def test_a_worker_whose_driver_account_is_refused_says_so_everywhere_ends_its_scripts_and_takes_more_once_it_can(
    team: Team, host: DriverHost
) -> None:
    host.submit("x")
    eventually(lambda: host.slots.busy == 1)

    team.rotate()
    eventually(lambda: host.impairments.all)
    eventually(lambda: host.slots.busy == 0)

    [impairment] = host.impairments.all
    assert (impairment.kind, impairment.stops_trials, host.slots.offered) == ("account", False, 0)
    said = "the worker takes no submitted scripts, its driver account can't log in: Redis refuses the login"
    assert said in reasons(host.impairments)
    refused = worker("w@h", impairments=[impairment], drivers=host.slots.offered)
    assert said in why_no_driver_slot("x", [refused])
    Fleet(team.admin.admin, patience_s=5).join(refused, 60)
    checked = CliRunner().invoke(group, ["doctor", "--broker", team.admin.url, "--json"])
    assert [each["state"] for each in json.loads(checked.stdout) if said in each["text"]] == ["problem"]
    team.restore()
    eventually(lambda: not host.impairments.all)
    assert host.slots.offered == 1
