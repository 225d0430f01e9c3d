from __future__ import annotations

import compileall
import contextlib
import gc
import itertools
import os
import secrets
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
import redis
from servers import the_server
from waiting import described, eventually
from watchdog import RUN_MARK, processes_of_run

import mqtune
from mqtune.backends import EmbeddedServer, ServerBinary
from mqtune.driver import Settings
from mqtune.journal import connect

#: Folders whose tests wait for servers, workers and leases more than they compute. The folders with the longest tests
#: come first.
WAITING: Final = ("chaos", "acceptance", "programs", "integration")
#: The share of a run at which the last waiting file begins. Computing files fill up the rest, with a second or two
#: each.
WAITING_BEGUN_AT: Final = 0.8
#: How long processes that were told to end may take: a server flushes its file, its watcher looks every 0.05 s.
GOODBYE_S: Final = 5.0

# Suites that are not test modules: their assertions show both sides all the same.
pytest.register_assert_rewrite("contract.journals")

_homes = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Set up bytecode, profiles and collection; a hook of a conftest.py is not asked about folders."""
    # Each of some thousand processes would compile what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    register_profiles()
    # A profile by name looks for new examples.
    if not config.getoption("--hypothesis-profile"):
        leave_constants_out()
    if process := os.environ.get("PYTEST_XDIST_WORKER"):
        processes = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        config.pluginmanager.register(OwnShareFirst(int(process.removeprefix("gw")), processes))


def register_profiles() -> None:
    # Plugins of other libraries: Trio's costs each process a second, and no test uses it.
    os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"
    # Bytecode may be written by now: pytest compiles this library anew in each process otherwise, which takes seconds.
    from hypothesis import settings

    # A busy machine is no reason to fail, and neither is chance: the suite takes the same examples on every machine.
    # They are few, as the suite has to be quick. Tests that need more take a multiple of this number, so that other
    # profiles count for them too.
    settings.register_profile("mqtune", deadline=None, max_examples=24, derandomize=True)
    # New random examples in each run, by .ci/explore. A failure prints how to get its example again.
    settings.register_profile("explore", deadline=None, max_examples=75, derandomize=False, print_blob=True)
    # Many random examples: pytest --hypothesis-profile=thorough --timeout=0 tests/property
    settings.register_profile("thorough", settings.get_profile("explore"), max_examples=5_000)
    settings.load_profile("mqtune")


def leave_constants_out() -> None:
    """Have Hypothesis draw no constants from the modules that this process has imported.

    They would make the examples of a test depend on the tests that ran before it in the same process, so a failure in
    one run would not come back in the next. Reading them takes each process some seconds.
    """
    from hypothesis.internal.conjecture import providers

    # There is no setting for it. What it returns is empty until it is called.
    providers._get_local_constants = lambda: providers._local_constants


def pytest_sessionstart() -> None:
    """Compile the package once, and not in all processes of the run at the same time."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        compileall.compile_dir(Path(mqtune.__file__).parent, quiet=1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Switch the garbage collector off while tests are collected, as nothing is garbage then."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


class OwnShareFirst:
    """Compiles each test module once: of a folder's, each process of the run imports its own share before it goes through all.

    Args:
        process: which it is.
        processes: how many there are.
    """

    def __init__(self, process: int, processes: int) -> None:
        self._share = slice(process, None, processes)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if isinstance(collector, pytest.Dir):
            for module in report.result[self._share]:
                # Errors of a module are reported where it is collected.
                with contextlib.suppress(Exception, pytest.skip.Exception):
                    _ = module.obj
        return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that wait among those that compute, so that the processors have work all the time, to the end."""
    files = list(dict.fromkeys(item.path for item in items))
    waiting = [file for folder in WAITING for file in files if file.parent.name == folder]
    computing = [file for file in files if file not in waiting]
    begins = {file: WAITING_BEGUN_AT * place / len(waiting) for place, file in enumerate(waiting)}
    begins |= {file: place / len(computing) for place, file in enumerate(computing)}
    items.sort(key=lambda item: begins[item.path])


@pytest.fixture(scope="session", autouse=True)
def random_by_default() -> Iterator[None]:
    """Have tuners of tests draw configs at random where nobody names a searcher: that is quick, and repeats."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "default_searcher", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """When all tests and their fixtures are done, no process that they started runs, and no file is left here."""
    before = {path.name for path in Path.cwd().iterdir()}
    mark, folder = secrets.token_hex(8), tmp_path_factory.getbasetemp()
    # A run that is killed can't clean up. The watchdog, which doesn't carry the mark, does it then.
    watchdog = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("watchdog.py"), mark, folder],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    os.environ[RUN_MARK] = mark
    # For what fixtures of more than one test do; each test has a home of its own.
    os.environ["MQTUNE_HOME"] = str(folder / "home")
    try:
        yield
        check_that_nothing_is_left(mark, folder, watchdog.pid)
        # Tools of tests keep caches under such names.
        left = [path.name for path in Path.cwd().iterdir() if path.name[0] not in "._" and path.name not in before]
        assert not left, "tests left files in the working directory"
    finally:
        watchdog.communicate()


def check_that_nothing_is_left(mark: str, folder: Path, watchdog: int) -> None:
    me = psutil.Process()
    left: list[str] = []

    def all_gone() -> bool:
        found = {*me.children(recursive=True), *processes_of_run(mark, folder)}
        texts = [described(process) for process in found if process.pid not in (me.pid, watchdog)]
        # Python's own, for shared memory; it ends with the process that has it.
        left[:] = [text for text in texts if "multiprocessing.resource_tracker" not in text]
        return not left

    with contextlib.suppress(AssertionError):
        eventually(all_gone, GOODBYE_S)
    assert not left, "tests left processes behind"


@pytest.fixture(autouse=True)
def mqtune_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for each test; made when something is first kept in it."""
    home = tmp_path_factory.getbasetemp() / f"home-{next(_homes)}"
    monkeypatch.setenv("MQTUNE_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def server_binary() -> ServerBinary:
    """The program of a server, the first that is here; without one the tests that need it are skipped, but not in CI."""
    return the_server()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory, server_binary: ServerBinary) -> Iterator[EmbeddedServer]:
    """A server for all tests of the run."""
    with EmbeddedServer.start(tmp_path_factory.mktemp("server"), binary=server_binary) as server:
        yield server


@pytest.fixture
def redis_client(redis_server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A checked connection to a server that holds nothing."""
    with contextlib.closing(connect(redis_server.url, role="test")) as client:
        client.flushdb()
        yield client
