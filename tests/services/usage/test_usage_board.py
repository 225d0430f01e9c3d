"""The board of samples on a real server: the accounts with access, and the lifetime of a sample."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import pytest
from accounts import Accounts

from mqtune.backends import EmbeddedServer
from mqtune.core.errors import AccessDenied
from mqtune.core.keys import ExperimentKeys
from mqtune.core.usage import DeviceUse, LiveUse
from mqtune.journal import connect
from mqtune.services.usage.board import UsageBoard

TEAM: Final = "team-a-*"


def test_workers_write_samples_and_only_accounts_of_the_team_read_them(redis_server: EmbeddedServer) -> None:
    ours, theirs = ("team-a-1", "w@h"), ("team-b-1", "w@h")
    use = LiveUse(1, {"0": DeviceUse(87.0, 5e9, 412.0)}, 1.5, 2e9, {}, {"sampled_s": 10.0})
    with contextlib.ExitStack() as open_:
        accounts = open_.enter_context(contextlib.closing(Accounts(redis_server.url)))

        def board(role: Any) -> UsageBoard:
            url = accounts.make(role, experiments=TEAM)
            return UsageBoard(open_.enter_context(contextlib.closing(connect(url, role=role))))

        worker = board("worker")
        worker.write(ours, {"0001": use})
        for role in ("driver", "operator", "monitor"):
            assert board(role).read([ours]) == {ours: {"0001": use}}
        assert accounts.refused() == []

        # Another team's account reads nothing, and writes nothing.
        assert board("monitor").read([theirs]) == {}
        with pytest.raises(AccessDenied):
            worker.write(theirs, {"0001": use})
        with pytest.raises(AccessDenied):
            board("monitor").write(ours, {})
        assert len(accounts.refused()) == 3
        assert 0 < accounts.admin.pttl(ExperimentKeys(ours[0]).usage(ours[1])) <= 30_000
