"""The traces of an import: the resources that a fork can't share, and the ones that it can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list these resources")

#: Seconds that a process or a fork has until it counts as hanging.
HANGS_S: Final = 30
BEGIN: Final = """
import json, os, sys, time
from mqtune.trainable.process import footprint
from mqtune.trainable.process.descendants import children_of
"""
LOOK: Final = "\nfound = footprint.traces(before, footprint.take())\n"
#: Ends the processes and threads that a test has started.
END: Final = """
sys.stdout.flush()
for pid in children_of(os.getpid()):
    os.kill(pid, 9)
os._exit(0)
"""


def printed(source: str, folder: Path) -> Any:
    """Return the value that a fresh interpreter prints."""
    command = [sys.executable, "-c", BEGIN + source + END]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=4 * HANGS_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


class Trace(NamedTuple):
    """A trace of an import, as a process has printed it."""

    kind: str
    what: str
    way_out: str


def left_by(source: str, folder: Path, *, before: str = "") -> list[Trace]:
    """Return the traces of code that runs behind the code *before*."""
    script = f"{before}\nbefore = footprint.take()\n{source}\n{LOOK}\nprint(json.dumps(found))\n"
    return [Trace(*trace) for trace in printed(script, folder)]


def kinds_and_names(traces: list[Trace]) -> list[tuple[str, str]]:
    return [(kind, what) for kind, what, _ in traces]


#: Code that a fork survives.
CLEAN: Final = {
    "nothing": "",
    "linear algebra": "import numpy as np; PRODUCT = np.ones((500, 500)) @ np.ones((500, 500))",
    "a closed file": "DATA = open('data', 'w+'); DATA.close()",
    "a log": "LOG = open('log', 'a')",
    "a logging handler": "import logging; logging.basicConfig(filename='log'); logging.warning('begun')",
    "a read-only memmap": "import numpy as np; np.arange(9).tofile('data'); DATA = np.memmap('data', mode='r')",
    "a private memmap": "import numpy as np; np.arange(9).tofile('data'); DATA = np.memmap('data', mode='c')",
    "a memmap of an odd name": (
        "import numpy as np; np.arange(9).tofile('a\\u2028 b\\r'); DATA = np.memmap('a\\u2028 b\\r', mode='r')"
    ),
    "an npz that was read": "import numpy as np; np.savez('data.npz', a=[1]); DATA = dict(np.load('data.npz'))",
    "a folder": "FOLDER = os.open('.', os.O_RDONLY)",
    "devices without a state": "A, B = open('/dev/null', 'w'), open('/dev/urandom', 'rb')",
    "locks and values": "import multiprocessing as m; LOCK, VALUE = m.get_context('fork').Lock(), m.get_context('fork').Value('i', 3)",
    "shared memory": (
        "from multiprocessing.shared_memory import SharedMemory; MEMORY = SharedMemory(create=True, size=9); MEMORY.unlink()"
    ),
    "an ended process": "import subprocess; subprocess.run(['true'])",
    "an ended thread": "import threading; THREAD = threading.Thread(target=int); THREAD.start(); THREAD.join()",
    "an ended pool": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(9) as pool:\n    [*map(pool.submit, [int] * 99)]"
    ),
    "a pool that ends": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "POOL = ThreadPoolExecutor(9); [*map(POOL.submit, [int] * 99)]; POOL.shutdown(wait=False)"
    ),
    "an event loop that has run": "import asyncio; asyncio.run(asyncio.sleep(0))",
    "an exit handler": "import atexit; atexit.register(int)",
    "the environment and the path": "os.environ['SET'] = '1'; sys.path.insert(0, '/elsewhere')",
    "a handler of the end of children": "import signal; signal.signal(signal.SIGCHLD, lambda *_: None)",
    "modules of mqtune": (
        "import mqtune, mqtune.trainable.process.importer, mqtune.checkpoints.dicts, mqtune.trainable.process.runner; mqtune.Tuner"
    ),
    "a progress bar": "import tqdm; BAR = tqdm.tqdm(total=3)",
    "clusters": (
        "import numpy as np; from sklearn.cluster import KMeans\n"
        "KMeans(3, n_init=1).fit(np.random.default_rng(0).random((2000, 4)))"
    ),
    "boosted trees": (
        "import numpy as np; from sklearn.ensemble import HistGradientBoostingRegressor as Trees\n"
        "X = np.random.default_rng(0).random((2000, 4)); Trees(max_iter=2).fit(X, X[:, 0])"
    ),
}
SLEEPS: Final = "target=time.sleep, args=(60,), name='Loader'"
#: Code that no fork survives, and the kinds and names of its traces. "*" stands for the test's folder.
UNCLEAN: Final = {
    "import numpy as np; np.savez('d.npz', a=[1]); DATA = np.load('d.npz')": [("file", "*/d.npz")],
    "DATA = open('d', 'w'); DATA.write('1')": [("file", "*/d")],
    "open('d', 'w').close(); DATA = open('d', 'rb')": [("file", "*/d")],
    "DATA = open('d', 'a+')": [("file", "*/d")],
    "import numpy as np; np.arange(9).tofile('d'); MAPPED = np.memmap('d', mode='r'); DATA = open('d')": [
        ("file", "*/d")
    ],
    "import numpy as np; np.arange(9).tofile('d'); DATA = np.memmap('d', mode='r+')": [("file", "*/d")],
    "open('/dev/shm/mqtune-test', 'w').close(); D = open('/dev/shm/mqtune-test'); os.unlink(D.name)": [
        ("file", "/dev/shm/mqtune-test (deleted)")
    ],
    "import sqlite3; DB = sqlite3.connect('d'); DB.execute('create table t (x)')": [("file", "*/d")],
    "import zipfile; zipfile.ZipFile('d', 'w').close(); DATA = zipfile.ZipFile('d')": [("file", "*/d")],
    "import socket; PAIR = socket.socketpair()": [("socket", "a socket")],
    "PIPE = os.pipe()": [("pipe", "a pipe")],
    # It has its name a moment after its start.
    "import subprocess; CHILD = subprocess.Popen(['sleep', '60'])\n"
    "while open(f'/proc/{CHILD.pid}/comm').read() != 'sleep\\n':\n    time.sleep(0.01)": [("child", "sleep")],
    f"import threading; threading.Thread({SLEEPS}).start()": [("thread", "Loader")],
    f"import threading; threading.Thread({SLEEPS}, daemon=True).start()": [("thread", "Loader")],
    "from concurrent.futures import ThreadPoolExecutor as Pool; POOL = Pool(1, 'load'); POOL.submit(int)": [
        ("thread", "load_0")
    ],
    "import signal; signal.signal(signal.SIGTERM, lambda *_: None)": [("handler", "SIGTERM")],
    "import signal; signal.signal(signal.SIGRTMIN + 3, signal.SIG_IGN)": [("handler", "signal 37")],
    "os.chdir('/')": [("folder", "/")],
    "os.mkdir('d'); os.chdir('d'); os.rmdir('../d')": [("folder", "a deleted one")],
    "DATA = open(b'\\xff', 'w')": [("file", "*/\\udcff")],
}


@pytest.mark.parametrize("source", CLEAN.values(), ids=CLEAN.keys())
def test_an_import_leaves_no_trace_where_a_fork_can_share_it(tmp_path: Path, source: str) -> None:
    assert left_by(source, tmp_path) == []


@pytest.mark.parametrize("source", UNCLEAN)
def test_an_import_leaves_a_trace_where_a_fork_can_not_share_it(tmp_path: Path, source: str) -> None:
    found = kinds_and_names(left_by(source, tmp_path))

    assert found == [(kind, name.replace("*", str(tmp_path))) for kind, name in UNCLEAN[source]]


def test_a_connection_and_a_server_are_told_apart_and_named_by_their_addresses(tmp_path: Path) -> None:
    found = left_by(
        "import socket; SERVER = socket.create_server(('127.0.0.1', 0)); CLIENT = socket.create_connection(SERVER.getsockname())",
        tmp_path,
    )

    (listener, address), connection = kinds_and_names(found)
    assert listener == "listener"
    assert address.startswith("127.0.0.1:")
    assert connection == ("socket", f"a connection to {address}")


def test_a_socket_is_inspected_without_a_change_to_it(tmp_path: Path) -> None:
    source = """
import socket
SERVER = socket.create_server(("127.0.0.1", 0))
CLIENT = socket.create_connection(SERVER.getsockname())
before = footprint.take()._replace(files=frozenset())
socket.setdefaulttimeout(5)
footprint.traces(before, footprint.take())
print(json.dumps([os.get_blocking(CLIENT.fileno()), CLIENT.send(b"1")]))
"""

    assert printed(source, tmp_path) == [True, 1]


def test_a_thread_that_python_does_not_know_is_a_trace(tmp_path: Path) -> None:
    (trace,) = left_by("import _thread; _thread.start_new_thread(time.sleep, (60,))", tmp_path)

    assert trace.kind == "native thread"


def test_a_thread_counts_that_takes_the_place_of_one_that_a_fork_has_ended(tmp_path: Path) -> None:
    """OpenBLAS ends its threads before a fork, in the parent too, so their number says nothing."""
    source = """
if (pid := os.fork()) == 0:
    os._exit(0)
os.waitpid(pid, 0)
import _thread
_thread.start_new_thread(time.sleep, (60,))
"""

    (trace,) = left_by(source, tmp_path, before="import numpy")

    assert trace.kind == "native thread"


@pytest.mark.parametrize(
    "start",
    ["threading.Thread(target=time.sleep, args=(0.2,)).start()", "_thread.start_new_thread(time.sleep, (0.2,))"],
)
def test_a_thread_that_is_about_to_end_is_waited_for(tmp_path: Path, start: str) -> None:
    before = f"footprint._ENDING_S = {HANGS_S}"

    assert left_by(f"import _thread, threading\n{start}", tmp_path, before=before) == []


def test_resources_from_before_the_import_are_no_trace(tmp_path: Path) -> None:
    before = f"import threading; threading.Thread({SLEEPS}).start(); DATA = open('d', 'w'); os.chdir('/')"

    assert left_by("import json.tool", tmp_path, before=before) == []


def test_a_descriptor_that_is_closed_and_used_again_is_a_trace(tmp_path: Path) -> None:
    before = "a = os.open('a', os.O_CREAT | os.O_RDWR)"
    source = "os.close(a); b = os.open('b', os.O_CREAT | os.O_RDWR); assert a == b"

    assert kinds_and_names(left_by(source, tmp_path, before=before)) == [("file", f"{tmp_path}/b")]


def test_a_file_of_the_same_name_under_the_same_descriptor_is_a_trace(tmp_path: Path) -> None:
    before = "a = os.open('a', os.O_CREAT | os.O_RDWR)"
    source = "open('b', 'w').close(); os.close(a); os.replace('b', 'a'); assert a == os.open('a', os.O_RDWR)"

    assert kinds_and_names(left_by(source, tmp_path, before=before)) == [("file", f"{tmp_path}/a")]


@pytest.mark.parametrize("is_mapped", [False, True], ids=["open", "mapped"])
def test_a_device_is_a_trace_whether_it_is_open_or_only_mapped(tmp_path: Path, is_mapped: bool) -> None:
    (tmp_path / "nvidia0").write_bytes(bytes(4096))
    before = f"footprint.DEVICE_FILES = ({str(tmp_path / 'nvidia')!r},)"
    source = "device = os.open('nvidia0', os.O_RDONLY)"
    if is_mapped:
        source += """
import ctypes, mmap
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
assert libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, device, 0)
os.close(device)
"""
    devices = (
        "assert sorted(footprint.take().devices) == [what for _, what, _ in footprint.traces(before, footprint.take())]"
    )

    found = left_by(f"{source}\n{devices}", tmp_path, before=before)

    assert kinds_and_names(found) == [("device", str(tmp_path / "nvidia0"))]


#: Hides the stacks of threads, as some containers do.
HIDDEN: Final = """
import builtins
real = builtins.open
def open_unless_hidden(path, *arguments, **options):
    if str(path).startswith("/proc") and str(path).endswith(HIDES):
        raise FileNotFoundError(path)
    return real(path, *arguments, **options)
builtins.open = open_unless_hidden
"""


@pytest.mark.parametrize(
    ("source", "is_clean"), [("", True), ("import _thread; _thread.start_new_thread(time.sleep, (60,))", False)]
)
def test_where_stacks_are_hidden_threads_are_judged_by_their_number(
    tmp_path: Path, source: str, is_clean: bool
) -> None:
    found = left_by(f"import numpy\n{source}", tmp_path, before=f"HIDES = 'syscall'\n{HIDDEN}")

    assert {kind for kind, *_ in found} == (set() if is_clean else {"native thread"})


def test_without_proc_threads_handlers_and_the_folder_are_still_seen(tmp_path: Path) -> None:
    before = f"""
HIDES = ''
{HIDDEN}
list_folder = os.listdir
def list_unless_hidden(path):
    if path.startswith("/proc"):
        raise FileNotFoundError(path)
    return list_folder(path)
os.listdir = list_unless_hidden
"""
    source = f"""
import signal, threading
threading.Thread({SLEEPS}, daemon=True).start()
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
os.chdir("/")
DATA = open("/etc/passwd")
"""

    found = kinds_and_names(left_by(source, tmp_path, before=before))

    assert found == [("thread", "Loader"), ("handler", "SIGUSR1"), ("folder", "/")]


def test_exit_handlers_are_counted(tmp_path: Path) -> None:
    source = """
import atexit
before = footprint.exit_handlers()
atexit.register(int)
print(footprint.exit_handlers() - before)
"""

    assert printed(source, tmp_path) == 1


class Library(NamedTuple):
    """A library: a statement that uses its threads, and whether a fork behind that works."""

    imports: str
    use: str
    can_be_forked: bool


LIBRARIES: Final = {
    "sklearn": Library(
        "import numpy as np; from sklearn.cluster import KMeans",
        "KMeans(3, n_init=1).fit(np.random.default_rng(0).random((2000, 4)))",
        True,
    ),
    "torch": Library("import torch", "torch.ones(1000, 1000) @ torch.ones(1000, 1000)", True),
    "pyarrow": Library(
        "import pyarrow, pyarrow.parquet as parquet",
        "parquet.write_table(pyarrow.table({'a': range(99_999)}), f'd{os.getpid()}'); parquet.read_table(f'd{os.getpid()}')",
        True,
    ),
    "duckdb": Library("import duckdb", "duckdb.sql('select sum(range) from range(9999999)').fetchall()", True),
    "polars": Library(
        "import polars", "polars.DataFrame({'a': range(9999)}).lazy().group_by('a').agg(polars.len()).collect()", False
    ),
    "jax": Library("import jax, jax.numpy as jnp", "jax.device_get(jnp.ones((99, 99)) @ jnp.ones((99, 99)))", False),
    "grpc": Library(
        "import grpc",
        "CHANNEL = grpc.insecure_channel('127.0.0.1:1')\n"
        "try:\n    CHANNEL.unary_unary('/a/b')(b'', timeout=5)\nexcept grpc.RpcError:\n    pass",
        False,
    ),
    "numba": Library(
        "import numba",
        "@numba.njit(parallel=True)\ndef add(n):\n    total = 0\n"
        "    for i in numba.prange(n):\n        total += i\n    return total\nassert add(9) == 36",
        False,
    ),
}
each_library = pytest.mark.parametrize("name", LIBRARIES)
#: Forks, uses the library in the child, and waits for its end.
FORK: Final = f"""
sys.stdout.flush()
if (pid := os.fork()) == 0:
    try:
        exec(USE)
        os._exit(0)
    finally:
        os._exit(1)
deadline = time.monotonic() + {HANGS_S}
while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
    time.sleep(0.01)
print(json.dumps([found, "hangs" if ended == (0, 0) else ended[1]]))
"""


@each_library
def test_the_import_of_a_library_is_clean_and_a_fork_behind_it_can_use_it(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    _, use, _ = LIBRARIES[name]

    source = f"USE = {use!r}\nbefore = footprint.take()\n{LIBRARIES[name].imports}\n{LOOK}{FORK}"

    assert printed(source, tmp_path) == [[], 0]


@pytest.mark.parametrize("name", [name for name, library in LIBRARIES.items() if library.can_be_forked])
def test_a_fork_can_use_a_library_that_was_used_before_and_left_no_trace(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    imports, use, _ = LIBRARIES[name]

    source = f"USE = {use!r}\nbefore = footprint.take()\n{imports}\n{use}\n{LOOK}{FORK}"

    assert printed(source, tmp_path) == [[], 0]


@pytest.mark.parametrize("name", [name for name, library in LIBRARIES.items() if not library.can_be_forked])
def test_the_use_of_a_library_that_no_fork_survives_is_a_trace(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name)
    imports, use, _ = LIBRARIES[name]

    found = left_by(f"{imports}\n{use}", tmp_path)

    named = {what.strip("_") for kind, what, _ in found if kind in ("native thread", "library")}
    assert any(what.startswith(name) for what in named), found
