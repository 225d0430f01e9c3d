"""Default names on a server that several machines use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import redis

from mqtune.backends import EmbeddedServer
from mqtune.core.keys import EXPERIMENTS
from mqtune.driver.setup.deployments import deployment_of

#: Takes names as a machine with a home of its own.
MACHINE = """
import sys
from mqtune.driver.setup.deployments import deployment_of
deployment = deployment_of(sys.argv[1])
print(*(deployment.new_name("digits") for _ in range(20)))
"""


def test_machines_that_begin_at_the_same_time_get_different_names(
    redis_server: EmbeddedServer, redis_client: redis.Redis, tmp_path: Path
) -> None:
    machines = [
        subprocess.Popen(
            [sys.executable, "-c", MACHINE, redis_server.url],
            env={**os.environ, "MQTUNE_HOME": str(tmp_path / home)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for home in ("one", "two")
    ]
    names = [name for machine in machines for name in machine.communicate(timeout=60)[0].split()]

    assert sorted(names) == sorted(f"digits-{number}" for number in range(1, 41))


def test_a_name_on_the_server_is_not_reused(
    redis_server: EmbeddedServer, redis_client: redis.Redis, mqtune_home: Path
) -> None:
    deployment = deployment_of(redis_server.url)
    assert deployment.new_name("digits") == "digits-1"
    # Another user's experiment, with a name by hand.
    redis_client.zadd(EXPERIMENTS, {"digits-2": 1})
    # This machine knows nothing of the first experiment any more.
    shutil.rmtree(mqtune_home)

    assert deployment.new_name("digits") == "digits-3"


def test_a_server_without_its_data_reuses_no_name_of_this_machine(
    redis_server: EmbeddedServer, redis_client: redis.Redis, mqtune_home: Path
) -> None:
    deployment = deployment_of(redis_server.url)
    assert deployment.new_name("digits") == "digits-1"

    redis_client.flushdb()

    assert deployment.new_name("digits") == "digits-2"
