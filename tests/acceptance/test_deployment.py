"""What is deployed, run as its image would be: with its folders, its command lines and its health checks, and no container."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from faces import ROOT, running, wait_until_joined
from started import free_port
from waiting import eventually

from mqtune.backends import EmbeddedServer, find_binary

BIN = Path(sys.executable).parent
#: What README's example is, with fewer and shorter trials.
SHORTER = """
import mqtune
from digits import SPACE, train

if __name__ == "__main__":
    results = mqtune.Tuner(
        train, SPACE, metric="accuracy", mode="max", max_trials=2, stop={"training_iteration": 1}, name="deployed",
        checkpoints=mqtune.Checkpoints("CHECKPOINTS"), run=mqtune.RunOptions(progress=False),
        searcher=mqtune.PointsFirst([{"width": 16, "batch": 128}] * 2),
    ).run()
    print(len(results), "trials", 0 < results.best.value <= 1)
"""


def compose(name: str) -> dict[str, Any]:
    text = (ROOT / name).read_text()
    # What a file .env would have, and else the defaults.
    return yaml.safe_load(
        re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", lambda m: m[3] if m[2] == ":-" else "secret", text)
    )


def program(argv: list[str]) -> list[str]:
    """A command line of the image, with the programs of this environment."""
    return [str(BIN / argv[0]), *argv[1:]]


class Image(NamedTuple):
    """The image's folders, somewhere else, with a Redis and a worker."""

    broker: str
    folder: Path
    environment: dict[str, str]
    worker: subprocess.Popen[bytes]

    def run(self, argv: list[str], cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environment, **more}
        return subprocess.run(
            program(argv), cwd=cwd or self.folder / "srv", env=environment, capture_output=True, text=True, timeout=180
        )


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    text = (ROOT / "workers/Dockerfile").read_text()
    for source, target in re.findall(r"^COPY (workers/\S+) /srv/mqtune/(\S+)$", text, re.MULTILINE):
        (folder / "srv" / target).parent.mkdir(parents=True)
        shutil.copy(ROOT / source, folder / "srv" / target)
    # As it is mounted: links that lead out of it lead nowhere.
    shutil.copytree(ROOT / "examples", folder / "code", symlinks=True)
    (folder / "code" / "shorter.py").write_text(SHORTER.replace("CHECKPOINTS", str(folder / "checkpoints")))
    (variables,) = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    environment = {
        name: str(folder / value[1:]) if value.startswith("/") else value
        for name, value in (pair.split("=") for pair in variables.split())
    }
    command = yaml.safe_load(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[0])
    with EmbeddedServer.start(folder / "server", binary=find_binary()) as server:
        environment |= {"MQTUNE_BROKER": server.url, "MQTUNE_GPUS": "0", "MQTUNE_SLOTS": "2"}
        with running(program(command), environment, folder / "worker.log", cwd=folder / "srv") as worker:
            wait_until_joined(server.url, "celery")
            yield Image(server.url, folder, environment, worker)


def test_the_readmes_example_runs_in_it_as_it_comes(image: Image):
    done = image.run(["python", "shorter.py"], cwd=image.folder / "code")

    assert "2 trials True" in done.stdout, done.stderr


@pytest.mark.parametrize("file", ["docker-compose.yml", "docker-compose.workers.yml"])
def test_a_worker_in_order_passes_its_health_check_and_one_that_is_not_there_fails(image: Image, file: str):
    check = compose(file)["services"]["worker"]["healthcheck"]["test"]
    assert check[0] == "CMD"

    healthy = image.run(check[1:])
    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert f"celery@{socket.gethostname()}: 2 slots" in healthy.stdout

    other = image.run([*check[1:], "--name", "other"])
    assert other.returncode == 1
    assert "no worker 'other' of this machine" in other.stderr
    # Restarting it would end its trials, and bring Redis no nearer.
    assert image.run(check[1:], MQTUNE_BROKER="redis://127.0.0.1:1/0").returncode == 0


def test_flower_passes_its_health_check_once_it_is_up(image: Image):
    service = compose("docker-compose.yml")["services"]["flower"]
    port = str(free_port())
    check = [word.replace("5555", port) for word in service["healthcheck"]["test"][1:]]
    command = [word.replace("5555", port).replace("0.0.0.0", "127.0.0.1") for word in service["command"]]
    variables = {name: value for name, value in service["environment"].items() if name.startswith("FLOWER_")}

    assert image.run(check).returncode == 1
    with running(
        program(command), {**image.environment, **variables}, image.folder / "flower.log", cwd=image.folder / "srv"
    ):
        eventually(lambda: image.run(check).returncode == 0, 30)
