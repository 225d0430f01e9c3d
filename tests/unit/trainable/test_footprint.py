"""The traces of an import: the resources that a fork can't share, and the ones that it can."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.version import Version

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
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=8 * HANGS_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def left_by(source: str, folder: Path, *, before: str = "") -> list[tuple[str, str]]:
    """Return the kinds and names of the traces of code that runs behind the code *before*."""
    script = f"{before}\nbefore = footprint.take()\n{source}\n{LOOK}\nprint(json.dumps(found))\n"
    return [(kind, what) for kind, what, _ in printed(script, folder)]


#: Code that a fork survives.
CLEAN: Final = [
    "import numpy as np; PRODUCT = np.ones((500, 500)) @ np.ones((500, 500))",
    "DATA = open('data', 'w+'); DATA.close()",
    "import logging; logging.basicConfig(filename='log'); logging.warning('begun')",
    "import numpy as np; np.arange(9).tofile('data'); DATA = np.memmap('data', mode='r')",
    "import numpy as np; np.savez('data.npz', a=[1]); DATA = dict(np.load('data.npz'))",
    "import multiprocessing as m; LOCK, VALUE = m.get_context('fork').Lock(), m.get_context('fork').Value('i', 3)",
    "from multiprocessing.shared_memory import SharedMemory; MEMORY = SharedMemory(create=True, size=9); MEMORY.unlink()",
    "import threading; THREAD = threading.Thread(target=int); THREAD.start(); THREAD.join()",
    "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(9) as pool:\n    [*map(pool.submit, [int] * 99)]",
    "from concurrent.futures import ThreadPoolExecutor\nPOOL = ThreadPoolExecutor(9); [*map(POOL.submit, [int] * 99)]; POOL.shutdown(wait=False)",
    "import mqtune, mqtune.trainable.process.importer, mqtune.checkpoints.dicts, mqtune.trainable.process.runner; mqtune.Tuner",
]
SLEEPS: Final = "target=time.sleep, args=(60,), name='Loader'"
#: Code that no fork survives, and the kinds and names of its traces. "*" stands for the test's folder.
UNCLEAN: Final = {
    "import numpy as np; np.savez('d.npz', a=[1]); DATA = np.load('d.npz')": [("file", "*/d.npz")],
    "DATA = open('d', 'w'); DATA.write('1')": [("file", "*/d")],
    "open('d', 'w').close(); DATA = open('d', 'rb')": [("file", "*/d")],
    "DATA = open('d', 'a+')": [("file", "*/d")],
    "import numpy as np; np.arange(9).tofile('d'); M = np.memmap('d', mode='r'); DATA = open('d')": [("file", "*/d")],
    "import numpy as np; np.arange(9).tofile('d'); DATA = np.memmap('d', mode='r+')": [("file", "*/d")],
    "open('/dev/shm/mqtune-test', 'w').close(); D = open('/dev/shm/mqtune-test'); os.unlink(D.name)": [
        ("file", "/dev/shm/mqtune-test (deleted)")
    ],
    "import socket; PAIR = socket.socketpair()": [("socket", "a socket")],
    "PIPE = os.pipe()": [("pipe", "a pipe")],
    # It has its name a moment after its start.
    "import subprocess; CHILD = subprocess.Popen(['sleep', '60'])\n"
    "while open(f'/proc/{CHILD.pid}/comm').read() != 'sleep\\n':\n    time.sleep(0.01)": [("child", "sleep")],
    f"import threading; threading.Thread({SLEEPS}).start()": [("thread", "Loader")],
    f"import threading; threading.Thread({SLEEPS}, daemon=True).start()": [("thread", "Loader")],
    "import signal; signal.signal(signal.SIGTERM, lambda *_: None)": [("handler", "SIGTERM")],
    "import signal; signal.signal(signal.SIGRTMIN + 3, signal.SIG_IGN)": [("handler", "signal 37")],
    "os.chdir('/')": [("folder", "/")],
    "os.mkdir('d'); os.chdir('d'); os.rmdir('../d')": [("folder", "a deleted one")],
    "DATA = open(b'\\xff', 'w')": [("file", "*/\\udcff")],
}


def test_an_import_leaves_a_trace_exactly_where_a_fork_can_not_share_it(tmp_path: Path) -> None:
    source = f"""
found = []
for number, source in enumerate({[*CLEAN, *UNCLEAN]!r}):
    os.mkdir(f"{tmp_path}/{{number}}")
    os.chdir(f"{tmp_path}/{{number}}")
    before = footprint.take()
    exec(source, globals())
    found.append([[kind, what] for kind, what, _ in footprint.traces(before, footprint.take())])
    CHILD = THREAD = DATA = M = None
print(json.dumps(found))
"""

    found = printed(source, tmp_path)

    expected: list[tuple[str, list[list[str]]]] = [(clean, []) for clean in CLEAN]
    for number, (unclean, traces) in enumerate(UNCLEAN.items(), len(CLEAN)):
        expected.append((unclean, [[kind, name.replace("*", f"{tmp_path}/{number}")] for kind, name in traces]))
    assert list(zip([*CLEAN, *UNCLEAN], found, strict=True)) == expected


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
    source += "\nassert sorted(footprint.take().devices) == [what for _, what, _ in footprint.traces(before, footprint.take())]"

    found = left_by(source, tmp_path, before=before)

    assert found == [("device", str(tmp_path / "nvidia0"))]


#: Libraries: their imports, a statement that uses their threads, and whether a fork behind that works.
LIBRARIES: Final = {
    "sklearn": (
        "import numpy as np; from sklearn.cluster import KMeans",
        "KMeans(3, n_init=1).fit(np.random.default_rng(0).random((2000, 4)))",
        True,
    ),
    "torch": ("import torch", "torch.ones(1000, 1000) @ torch.ones(1000, 1000)", True),
    "polars": (
        "import polars", "polars.DataFrame({'a': range(9999)}).lazy().group_by('a').agg(polars.len()).collect()", False
    ),
    "jax": ("import jax, jax.numpy as jnp", "jax.device_get(jnp.ones((99, 99)) @ jnp.ones((99, 99)))", False),
    "grpc": (
        "import contextlib, grpc; CHANNEL = grpc.insecure_channel('127.0.0.1:1')",
        "with contextlib.suppress(grpc.RpcError):\n    CHANNEL.unary_unary('/a/b')(b'', timeout=5)",
        False,
    ),
}  # fmt: skip
#: The first versions that a fork survives. Earlier wheels of scikit-learn have a GNU OpenMP that can't end its threads.
FORKED_SINCE: Final = {"sklearn": Version("1.8")}
#: Libraries whose package has another name.
PACKAGES: Final = {"sklearn": "scikit_learn"}
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


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_was_used_can_be_used_behind_a_fork_or_its_use_is_a_trace(tmp_path: Path, name: str) -> None:
    library = pytest.importorskip(name)
    imports, use, can_be_forked = LIBRARIES[name]

    if can_be_forked and (name not in FORKED_SINCE or Version(library.__version__) >= FORKED_SINCE[name]):
        source = f"USE = {use!r}\nbefore = footprint.take()\n{imports}\n{use}\n{LOOK}{FORK}"
        assert printed(source, tmp_path) == [[], 0]
    else:
        found = left_by(f"{imports}\n{use}", tmp_path)
        named = {what.strip("_") for kind, what in found if kind in ("native thread", "library")}
        assert any(what.startswith(PACKAGES.get(name, name)) for what in named), found
