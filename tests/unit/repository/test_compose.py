"""The real programs take every command line and read every setting of the deployments."""

from __future__ import annotations

import configparser
import contextlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml
from waiting import eventually

from mqtune.backends import find_binary
from mqtune.cli import group, settings_from_environment
from mqtune.core.errors import BrokerRefused, BrokerUnavailable, NoServer
from mqtune.core.resources import Resources
from mqtune.journal import RedisClient, connect
from mqtune.services.worker import worker_app
from mqtune.trainable import KEY_VARIABLE
from mqtune.worker import GRACE_S, WorkerSettings, shutdown_s

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
BROKER = "redis://:redis-secret@head:6379/0"
PASSWORDS = {"REDIS_PASSWORD": "redis-secret", "FLOWER_PASSWORD": "flower-secret"}


def interpolated(text: str, variables: dict[str, str]) -> str:
    """Compose's interpolation, as far as the file uses it."""

    def value(found: re.Match[str]) -> str:
        name, sign, default = found[1], found[2], found[3]
        if sign == ":?" and not variables.get(name):
            raise KeyError(f"{name}: {default}")
        return variables.get(name) or default or ""

    return re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", value, text)


def compose(file: str = "docker-compose.yml", **variables: str) -> dict[str, Any]:
    return yaml.safe_load(interpolated((ROOT / file).read_text(), variables))


def services() -> dict[str, dict[str, Any]]:
    return compose(**PASSWORDS)["services"]


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile and their arguments."""
    text = re.sub(r"\\\n", " ", (ROOT / "workers/Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(ROOT / "workers/mqtune-worker.service")
    return parser["Service"]


def check_command(argv: list[str]) -> None:
    """Have the program's own parser take a command line, without running it."""
    if Path(argv[0]).name == "mqtune":
        _, name, *options = argv
        subcommand(group, click.Context(group), name).make_context(name, options)
        return
    # Each process of a run would import the programs to collect this file.
    from celery.bin.celery import celery
    from flower.command import is_flower_option

    program, _, _, name, *options = argv
    assert argv[:3] == ["celery", "-A", "workers.gpu"]
    app = SimpleNamespace(app=worker_app(WorkerSettings(broker=BROKER)))
    context = celery.make_context(program, argv[1:3], obj=app)
    parsed = subcommand(celery, context, name).make_context(name, options, parent=context)
    assert not parsed.args, "Celery takes what it does not know for settings"
    for option in parsed.params.get("tornado_argv", ()):
        assert is_flower_option(option), option


def subcommand(of: click.Group, context: click.Context, name: str) -> click.Command:
    found = of.get_command(context, name)
    assert found is not None, name
    return found


def alone() -> dict[str, Any]:
    """The worker of a machine besides the first."""
    found = compose("docker-compose.workers.yml", MQTUNE_BROKER=BROKER, MQTUNE_HOST="node7")
    return found["services"]["worker"]  # type: ignore[no-any-return]


def commands() -> Iterator[tuple[str, list[str]]]:
    for name, service in services().items():
        if service["command"][0] == "celery":
            yield f"compose: {name}", service["command"]
    yield "compose: worker's check", services()["worker"]["healthcheck"]["test"][1:]
    yield "compose: worker alone", alone()["command"]
    yield "Dockerfile", yaml.safe_load(dict(dockerfile())["CMD"])
    yield "systemd", shlex.split(unit()["ExecStart"])


@pytest.mark.parametrize("argv", [pytest.param(argv, id=name) for name, argv in commands()])
def test_the_program_takes_the_command_line(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", BROKER)
    check_command(argv)


@pytest.mark.parametrize(
    ("file", "given"),
    [
        ("docker-compose.yml", PASSWORDS),
        ("docker-compose.workers.yml", {"MQTUNE_BROKER": BROKER, "MQTUNE_HOST": "node7"}),
    ],
)
def test_passwords_a_broker_and_a_machines_name_have_no_default(file: str, given: dict[str, str]) -> None:
    for name in given:
        with pytest.raises(KeyError, match=name):
            compose(file, **{key: value for key, value in given.items() if key != name})


def test_every_port_is_on_loopback_unless_the_operator_says_otherwise() -> None:
    ports = [port for service in services().values() for port in service.get("ports", ())]

    assert sorted(ports) == ["127.0.0.1:5555:5555", "127.0.0.1:6379:6379"]
    there = compose(**PASSWORDS, MQTUNE_BIND="10.0.0.1")["services"]
    assert there["redis"]["ports"] == ["10.0.0.1:6379:6379"]


def test_every_variable_of_the_worker_is_an_option_of_it() -> None:
    added = [compose(f"docker-compose.{name}.yml")["services"]["worker"] for name in ("gpu", "metrics")]
    for service in (services()["worker"], alone(), *added):
        assert {*service["environment"]} <= worker_variables() | {KEY_VARIABLE}


def test_a_worker_serves_a_team_and_takes_code_where_env_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"MQTUNE_EXPERIMENTS": "team-a-*", "MQTUNE_ACCEPT_CODE": "1", "MQTUNE_CODE_KEY": "k" * 32}
    for file in ("docker-compose.yml", "docker-compose.workers.yml"):
        given = {**PASSWORDS, "MQTUNE_BROKER": BROKER, "MQTUNE_HOST": "node7", "MQTUNE_GPUS": "0"}
        for more, (experiments, tags) in (({}, ("*", [])), (wanted, ("team-a-*", ["accepts-code"]))):
            for name, value in compose(file, **given, **more)["services"]["worker"]["environment"].items():
                monkeypatch.setenv(name, "" if value is None else str(value))
            settings = settings_from_environment()
            assert settings.experiments == experiments
            assert sorted(settings.plan().offer.tags) == tags


def worker_variables() -> set[str]:
    command = subcommand(group, click.Context(group), "worker")
    options = [each for each in command.params if isinstance(each, click.Option) and each.envvar]
    return {str(each.envvar) for each in options}


def example_settings() -> dict[str, str]:
    """The example's variables, also the commented ones."""
    text = (ROOT / "workers/worker.env.example").read_text()
    return dict(re.findall(r"^#?(MQTUNE_\w+)=(.*)$", text, re.MULTILINE))


def test_the_example_has_every_setting_of_a_worker_and_no_other() -> None:
    assert {*example_settings()} == worker_variables() - {"MQTUNE_OWNER_FD"} | {KEY_VARIABLE, "MQTUNE_ADVERTISE"}


def test_the_values_in_the_example_are_taken_as_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    values = example_settings()
    # For a machine with GPUs, in place of slots.
    packed = {name: values.pop(name) for name in ("MQTUNE_PACK_GPUS", "MQTUNE_STRICT_GPU_MEMORY")}
    for name, value in {**values, "MQTUNE_GPUS": "0", "MQTUNE_USER": ""}.items():
        monkeypatch.setenv(name, value)
    settings = settings_from_environment()

    assert settings.code_root == Path("/srv/mqtune")
    assert settings.plan().offer == Resources(cpus=2, tags=["a100", "accepts-code", "nvlink"])
    assert len(settings.plan().devices) == 8
    monkeypatch.delenv("MQTUNE_SLOTS")
    for name, value in {**packed, "MQTUNE_GPUS": "0,", "MQTUNE_GPU_MEMORY": "24"}.items():
        monkeypatch.setenv(name, value)
    settings = settings_from_environment()
    shared = settings.plan()
    is_strict = any(getattr(service, "strict_gpu_memory", False) for service in settings.services)
    assert (shared.offer.gpu_memory_gb, len(shared.devices), is_strict) == (
        24,
        8,
        True,
    )


def test_redis_takes_the_configuration_and_asks_for_the_password(tmp_path: Path) -> None:
    try:
        binary = find_binary()
    except NoServer as error:
        pytest.skip(str(error))
    service = services()["redis"]
    program, path = service["command"]
    (mounted,) = service["configs"]
    content = compose(**PASSWORDS)["configs"][mounted["source"]]["content"]
    config, socket = tmp_path / "redis.conf", tmp_path / "s"
    config.write_text(content.replace("dir /data", f"dir {tmp_path}"))

    def client() -> RedisClient | None:
        """Return a client, or nothing as long as the server doesn't listen yet."""
        with contextlib.suppress(BrokerUnavailable):
            return connect(f"unix://:redis-secret@{socket}")
        return None

    assert program == "redis-server"
    assert mounted["target"] == path
    with subprocess.Popen(
        [binary.path, config, "--port", "0", "--unixsocket", socket], stdout=subprocess.DEVNULL
    ) as server:
        try:
            with contextlib.closing(eventually(client)) as connected:
                assert connected.config_get("appendonly") == {"appendonly": "yes"}
                assert connected.config_get("bind")["bind"].startswith("*"), "the other containers could not connect"
            with pytest.raises(BrokerRefused):
                connect(f"unix://{socket}")
        finally:
            server.terminate()


def test_a_stop_leaves_the_worker_the_time_that_it_takes() -> None:
    assert float(unit()["TimeoutStopSec"]) > shutdown_s(GRACE_S)
    assert float(services()["worker"]["stop_grace_period"].removesuffix("s")) > shutdown_s(GRACE_S)
    assert alone()["stop_grace_period"] == services()["worker"]["stop_grace_period"]
    assert unit()["KillMode"] == "mixed"
    assert unit()["OOMPolicy"] == "continue"
