"""Scripts as trainables: their arguments, reports and ends."""

from __future__ import annotations

import contextlib
import json
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attempts import ForkedTrial, TrialProcess
from hypothesis import given, strategies as st
from waiting import eventually, is_gone

from mqtune.checkpoints import open_store
from mqtune.trainable import PAUSE, STOP, MetricLines, TrainableSpec, WatchedFolder

Trial = Callable[..., TrialProcess]


def write(path: Path, code: str) -> None:
    """Write a script. A script in another language than Python is executable."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(code).lstrip())
    if path.suffix != ".py":
        path.chmod(0o755)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    """Starts a script in a trial's process."""
    with contextlib.ExitStack() as stack:

        def start(
            code: str,
            config: dict[str, Any] | None = None,
            name: str = "train.py",
            kind: type[TrialProcess] = ForkedTrial,
            metrics: tuple[str, ...] = (),
            **message: Any,
        ):
            code_root = tmp_path / "code"
            write(code_root / name, code)
            (files := tmp_path / f"attempt-{message.get('attempt', 1)}").mkdir()
            # Most of these scripts know nothing of folders for checkpoints.
            message = {"store": "", "options": {"metric": "loss", "pass_checkpoint_dir": "store" in message}, **message}
            spec = TrainableSpec(Path(name).stem, script=name, kind="script", metrics=metrics)
            process = stack.enter_context(contextlib.closing(kind(files, spec, code_root, **message)))
            process.start(config or {})
            return process

        yield start


def test_metrics_are_read_from_output_and_errors_which_are_logged_as_they_were(trial: Trial):
    code = """
        import sys
        print("epoch 1: loss 0.5")
        print("epoch 2: loss nan", file=sys.stderr)
        sys.stderr.write("epoch 3: loss 1e-05")
        """
    one = trial(code, metrics=(r"epoch (?P<epoch>\d+): loss (?P<loss>\S+)",))

    assert one.wait()["end"] == "completed"
    expected = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": float("nan")}, {"epoch": 3, "loss": 1e-05}]
    assert sorted(map(repr, one.reports())) == sorted(map(repr, expected))
    assert one.stdout() == "epoch 1: loss 0.5\n"
    assert one.stderr() == "epoch 2: loss nan\nepoch 3: loss 1e-05"


def test_a_program_in_any_language_reports_by_printing(trial: Trial):
    code = """
        #!/bin/sh
        echo begin
        echo '[tune-metric]: {"loss": 0.5, "st_worker_iter": 0, "arg": "'$2'"}'
        echo "it says [tune-metric]: here"
        echo 'epoch 2 [tune-metric]: {"loss": NaN}'
        printf 'raw \\377\\n'
        echo 'to the errors' >&2
        printf 'end [tune-metric]: {"loss": 0.25}'
        """
    one = trial(code, {"lr": 3}, name="train.sh")

    assert one.wait()["end"] == "completed"
    assert one.reports()[0] == {"loss": 0.5, "st_worker_iter": 0, "arg": "3"}
    assert one.values()[2] == 0.25
    assert len(one.reports()) == 3
    assert Path(one.message["stdout"]).read_bytes().endswith(b'NaN}\nraw \xff\nend [tune-metric]: {"loss": 0.25}')
    assert "to the errors\n" in one.stderr()


def test_a_line_that_is_no_report_is_said_in_the_log_and_is_no_crash(trial: Trial):
    bad = ('{"loss": ', '{"loss": 1e999999999999}}', "3", '{"n": 1267650600228229401496703205376}')
    one = trial("".join(f"print('[tune-metric]: {text}')\n" for text in (*bad, '{"loss": 1}')))

    assert one.wait()["end"] == "completed"
    assert one.values() == [1]
    assert one.stderr().count("no report:") == 4
    assert "'n'" in one.stderr()


@given(
    st.lists(
        st.sampled_from([b'[tune-metric]: {"a": 1}\n', b"text\n", b"\r", b"[tune-metric]", b"x[tune-metric]: {}\n"])
    ),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_reports_are_found_however_output_is_cut(lines: list[bytes], sizes: list[int]):
    text = b"".join(lines)
    whole, cut = MetricLines(), MetricLines()
    expected = [*whole.feed(text), *whole.finish()]

    found, position, number = [], 0, 0
    while position < len(text):
        size = sizes[number % len(sizes)]
        found += cut.feed(text[position : position + size])
        position, number = position + size, number + 1
    found += cut.finish()

    assert found == expected


def test_a_report_that_was_printed_and_is_too_large_to_be_read_is_told():
    lines = MetricLines()
    (problem,) = [*lines.feed(b'[tune-metric]: {"text": "'), *lines.feed(b"x" * 2**21)]
    assert [*lines.feed(b"." * 2**21)] == []
    assert str(problem).startswith("no report: a line of more than 1,048,576 bytes was printed: '[tune-metric]: {")
    assert len(str(problem)) < 2_000


def test_a_script_that_fails_is_told_with_its_code_or_the_signal_and_its_last_words(trial: Trial):
    code = """
        import os, signal, sys
        print('[tune-metric]: {"loss": 1}', flush=True)
        print("x" * 10_000, "the disk is full", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV) if sys.argv[2] == "killed" else sys.exit(3)
        """
    ends = (("exits", "Exited", "exited with code 3"), ("killed", "Killed", "SIGSEGV"))
    for number, (how, kind, words) in enumerate(ends, 1):
        one = trial(code, {"how": how}, attempt=number)
        said = one.wait()

        assert (said["end"], said["error_type"]) == ("failed", kind)
        assert words in said["error"]
        assert said["error"].endswith("the disk is full")
        assert len(said["error"]) < 5_000
        assert one.values() == [1]
        assert one.exit_code == (3 if how == "exits" else 139)
        assert one.stderr().count("the disk is full") == 1


def test_unflushed_output_is_reported_and_a_stop_ends_the_script_with_its_children(trial: Trial):
    code = """
        import subprocess, sys, time, os
        inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print('[tune-metric]: {"loss": 1, "pids": [%d, %d]}' % (os.getpid(), inner.pid))
        time.sleep(600)
        """
    one = trial(code)
    one.wait_for(lambda one: one.reports())
    one.tell(STOP)

    assert one.wait()["end"] == "stopped"
    eventually(lambda: all(map(is_gone, one.values("pids")[0])))


def test_a_stop_is_raised_in_a_script_that_reports_so_that_it_cleans_up(trial: Trial):
    code = """
        import mqtune, time
        try:
            mqtune.report({"loss": 1})
            time.sleep(600)
        except Exception:
            print("swallowed")
        finally:
            mqtune.save_checkpoint({"a": 1})
            print("cleaned up")
        """
    one = trial(code)
    one.wait_for(lambda one: one.reports())

    one.tell(PAUSE)

    assert one.wait()["end"] == "paused"
    assert one.stdout() == "cleaned up\n"
    assert one.saved() == ["m-t1-1-1"]
    assert one.stderr() == ""


#: Counts epochs, on from its checkpoint, and saves before it reports.
SYNE_TUNE = """
import argparse, json, os, pathlib, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--wait", type=int, default=0)
parser.add_argument("--st_checkpoint_dir")
args, _ = parser.parse_known_args()
path = pathlib.Path(args.st_checkpoint_dir, "epoch")
start = int(path.read_text()) if path.exists() else 0
for epoch in range(start + 1, args.epochs + 1):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(epoch))
    print("[tune-metric]: " + json.dumps({"epoch": epoch, "st_worker_timestamp": time.time()}), flush=True)
    while epoch == args.wait:
        time.sleep(0.01)
"""


def test_what_a_script_wrote_for_syne_tune_is_a_checkpoint_that_it_is_resumed_from(trial: Trial, tmp_path: Path):
    store = f"{tmp_path}/store"
    open_store(store).create()
    first = trial(SYNE_TUNE, {"epochs": 9, "wait": 2}, store=store)
    first.wait_for(lambda one: len(one.reports()) == 2)
    first.tell(PAUSE)
    assert first.wait()["end"] == "paused"
    name = first.checkpoints()[1]
    assert name

    second = trial(SYNE_TUNE, {"epochs": 4}, store=store, attempt=2, checkpoint=name)
    assert second.wait()["end"] == "completed", second.stderr()

    assert first.values("epoch") == [1, 2]
    assert second.values("epoch") == [3, 4]
    assert second.checkpoints()[-1] or second.saved()


def test_a_folder_is_taken_when_it_has_changed_and_is_whole(tmp_path: Path):
    folder, drafts = WatchedFolder(tmp_path / "watched"), iter(range(100))

    def draft() -> Path:
        path = tmp_path / f"draft-{next(drafts)}"
        path.mkdir()
        return path

    assert folder.take(draft) is None
    folder.path.mkdir()
    (folder.path / "model").write_text("one")
    assert (folder.take(draft) / "model").read_text() == "one"
    assert folder.take(draft) is None
    (folder.path / "sub").mkdir()
    (folder.path / "sub" / "more").write_text("two")
    changed = os.stat(folder.path / "sub" / "more").st_mtime
    assert folder.take(draft, before=changed - 1) is None
    assert (folder.take(draft, before=changed + 1) / "sub" / "more").read_text() == "two"
    # The clock was set back behind this.
    (folder.path / "model").write_text("three")
    os.utime(folder.path / "model", (time.time() + 3600,) * 2)
    assert (folder.take(draft, before=time.time()) / "model").read_text() == "three"
    assert WatchedFolder(folder.path).take(lambda: pytest.fail("copied")) is None, "what was there before is not new"


#: Shows all that a program can see of how it was started; it imports first what takes longest.
PROBE = """
import sys, os, signal, threading
import wave, random
VERSION = "1"
import json as j
import atexit, types, importlib.util

fds = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
described = {
    "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path, "fds": len(fds), "cwd": os.getcwd(), "doc": __doc__,
    "types": [type(sys.argv).__name__, type(__builtins__).__name__, type(__loader__).__name__],
    "names": sorted(set(globals()) - {"__annotations__", "described", "fds"}), "spec": repr(__spec__), "file": __file__,
    "is_main": __name__ == "__main__" and vars(sys.modules["__main__"]) is globals(),
    "signals": [repr(signal.getsignal(each)) for each in sorted(signal.valid_signals()) if each < 32],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "hook": sys.excepthook is sys.__excepthook__,
    "environ": {name: os.environ[name] for name in os.environ if name.startswith(("MQTUNE_T", "MQTUNE_A", "MQTUNE_E", "PYTHON"))},
    "streams": [[each.name, each.encoding, each.errors, each.line_buffering, each.write_through, each.mode, type(each.buffer).__name__,
        each is the] for each, the in ((sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__))],
    "input": sys.stdin.read(), "threads": [each.name for each in threading.enumerate()], "flags": repr(sys.flags),
    "main_thread": threading.current_thread() is threading.main_thread(), "session": os.getsid(0) == os.getpgrp() != os.getpid(),
    "train": str(importlib.util.find_spec("json").origin), "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
    "exc": repr(sys.exc_info()), "default": [threading.excepthook is threading.__excepthook__, sys.gettrace(), sys.getrecursionlimit()],
}
print(j.dumps(described, sort_keys=True), flush=True)
"""

#: How scripts end; each ends otherwise.
ENDINGS = {
    "well": "",
    "error": "def fails(): raise KeyError(1) from ValueError(2)\nfails()",
    "hook": "sys.excepthook = lambda kind, error, trace: print('hooked', kind, trace.tb_lineno, trace.tb_next)\n1 / 0",
    "thread": "threading.Thread(target=lambda: (threading.Event().wait(0.05), print('thread'))).start()",
    "closed": "atexit.unregister(print)\nsys.stdout.close()",
    "signal": "os.kill(os.getpid(), signal.SIGTERM)",
}
AT_EXIT = """
atexit.register(print, "at exit")
class Last:
    def __del__(self): os.write(1, b"deleted\\n")
last = Last()
own = sys.modules["own"] = types.ModuleType("own")
own.last, own.me = Last(), own
file = open("unflushed", "w")
file.write("text")
# Not the script's own: no end of the script has to take that apart.
signal.left = open("left", "w")
signal.left.write("in a package")
"""


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_can_not_tell_a_fork_from_an_interpreter_of_its_own(trial: Trial, tmp_path: Path, ending: str):
    code = PROBE + AT_EXIT + ENDINGS[ending]
    seen = []
    for attempt, kind in enumerate((ForkedTrial, TrialProcess), 1):
        files = tmp_path / "unflushed", tmp_path / "left"
        one = trial(f"import os; os.chdir({str(tmp_path)!r})\n{code}", {"lr": 0.5}, attempt=attempt, kind=kind)
        said = {key: value for key, value in one.wait().items() if key != "imported"}
        assert one.stdout(), one.stderr()
        lines = (
            one.stdout().replace(f"attempt-{attempt}", "attempt").replace(f'T": "{attempt}"', 'T": "1"').splitlines()
        )
        # An uncaught error's frames may keep a global beyond the end.
        printed = lines[1:] if ending != "error" else list(dict.fromkeys(lines[1:]))
        seen.append((json.loads(lines[0]), printed, one.stderr(), said, one.exit_code, *map(Path.read_text, files)))
        for file in files:
            file.unlink()

    assert seen[0][0] == seen[1][0]
    assert seen[0] == seen[1]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of installed packages."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site-packages"))
    return tmp_path / "site-packages"


def test_a_scripts_packages_are_imported_once_and_its_modules_each_time(trial: Trial, tmp_path: Path, packages: Path):
    write(packages / "lib.py", "import os; PID = os.getpid()")
    write(tmp_path / "code" / "mine.py", "import os, sys; PID, GIVEN = os.getpid(), sys.argv[1:]")
    code = "import lib, os\nimport mine\nprint(lib.PID == os.getpid(), mine.PID == os.getpid(), mine.GIVEN)"

    one = trial(code, {"lr": 1})

    assert one.wait()["end"] == "completed", one.stderr()
    # Modules of the user's own may read the arguments, and be edited between two trials.
    assert one.stdout() == "False True ['--lr', '1']\n"


@pytest.mark.parametrize(
    "code",
    [
        "import threading as t; t.Thread(target=t.Event().wait, name='it', daemon=True).start()",
        "import sys; sys.exit(0) if len(sys.argv) < 2 else None",
    ],
)
def test_a_package_behind_which_no_fork_is_safe_is_imported_by_each_script(trial: Trial, packages: Path, code: str):
    lib = f"import os; os.environ['LIB'] = os.environ.get('LIB', '') + 'x'; {code}; PID = os.getpid()"
    write(packages / "lib.py", lib)

    one = trial("import lib, os, sys\nprint(lib.PID == os.getpid(), os.environ['LIB'], sys.argv[1:])", {"lr": 1})

    assert one.wait()["end"] == "completed", one.stderr()
    assert one.stdout() == "True x ['--lr', '1']\n"
