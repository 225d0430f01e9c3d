"""A device that a person disables takes no trial, also after its worker has begun anew, until it is enabled."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

from faces import said
from running import running_worker
from waiting import eventually

from mqtune.backends import EmbeddedServer, find_binary
from mqtune.core.owner import this_owner
from mqtune.journal import Fleet, connect

OPTIONS = ("--gpus", "0,1", "--cpus", "2")


def test_a_disabled_device_takes_no_trial_until_it_is_enabled(tmp_path: Path) -> None:
    with (
        EmbeddedServer.start(tmp_path / "server", binary=find_binary()) as server,
        contextlib.closing(connect(server.url)) as client,
    ):
        fleet = Fleet(client, patience_s=5)

        drain = partial(said, "fleet", "drain", MQTUNE_BROKER=server.url)
        undrain = partial(said, "fleet", "undrain", MQTUNE_BROKER=server.url)

        def slots() -> tuple[int, str]:
            found = fleet.workers()
            return (found[0].slots, found[0].note) if found else (0, "")

        disabled = 1, f"device 1 is quarantined, disabled by {this_owner()}"
        with running_worker(server.url, tmp_path / "first.log", *OPTIONS, name="gpu"):
            eventually(lambda: slots() == (2, ""))
            assert "has no device '7'; it has 0, 1" in drain("gpu:7", code=1)
            assert "takes no further trial" in drain("gpu:1")
            eventually(lambda: slots() == disabled)
        with running_worker(server.url, tmp_path / "second.log", *OPTIONS, name="gpu"):
            eventually(lambda: slots() == disabled)
            assert "takes trials again" in undrain("gpu:1")
            eventually(lambda: slots() == (2, ""))
