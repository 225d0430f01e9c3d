"""One import for all slots: zygotes that share it and find their own devices, and imports that can't be shared."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from attempts import gone, import_key, start_message
from test_zygotes import frames
from waiting import eventually, is_gone, lives

from mqtune.core.timing import Timing
from mqtune.trainable import FRAME_REPORT, TrainableSpec
from mqtune.worker import Importer, ImportFailed, LateImports, ZygoteDied, ZygoteHandle, ZygoteSilent

DEVICES: Final = "CUDA_VISIBLE_DEVICES"

CODE: Final = f"""
import os, time
import mqtune

PID = os.getpid()

def says(config):
    package = globals().get("PACKAGE", 0)
    mqtune.report({{"devices": os.environ["{DEVICES}"], "imported_by": PID, "parent": os.getppid(), "package": package}})
    while config.get("waits"):
        time.sleep(0.01)
"""
#: What code may find out on import of the devices that it may use.
LOOKS: Final = {
    "reads": f"import os; DEVICE = os.environ.get('{DEVICES}')",
    "does not": "import os; HOME = os.environ.get('HOME')",
}
#: The first lines of a program that takes so long that it is executed once for all trials.
SLOW: Final = "import time\nwhile time.process_time() < 1: pass\n"


class Slots:
    """An importer, and a slot for each device: a zygote, and the trial that it runs."""

    def __init__(self, folder: Path, code: str, timing: Timing) -> None:
        self.folder = folder
        (folder / "job_code.py").write_text(f"{code}\n{CODE}")
        key = import_key(TrainableSpec("says", module="job_code"), folder)
        self.importer = Importer(key, {DEVICES: "0"}, folder / "log", varies=[DEVICES], timing=timing)
        self.importer.get_ready(LateImports(folder))

    def fork(self, device: str) -> ZygoteHandle:
        return self.importer.fork({DEVICES: device}, self.folder / f"log-{device}")

    def start(self, zygote: ZygoteHandle, **config: Any) -> dict[str, Any]:
        """Start a trial, and return its report."""
        read, write = os.pipe()
        control, told = os.pipe()
        out = str(self.folder / "out")
        zygote.send_start(start_message(config=config, stdout=out, stderr=out), [write, control])
        for fd in (write, control, told):
            os.close(fd)
        sent = frames(read)
        kind, (_, report) = next(sent)
        assert kind == FRAME_REPORT
        return {"pid": zygote.wait_started(), **report}


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Slots]]:
    made: list[Slots] = []
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site-packages"))

    def make(code: str = "", timing: Timing = Timing()) -> Slots:
        made.append(Slots(tmp_path, code, timing))
        return made[-1]

    yield make
    for one in made:
        one.importer.close()


def install(folder: Path, name: str, code: str) -> None:
    """Write a package as if it were installed."""
    (folder / "site-packages").mkdir(exist_ok=True)
    (folder / "site-packages" / f"{name}.py").write_text(code)


def scout_of(importer: Importer) -> int:
    """The process that has executed a slow program for all trials, and forks their zygotes."""
    (child,) = psutil.Process(importer.pid).children()
    return child.pid


def test_slots_share_installed_packages_and_each_trial_executes_a_quick_program_with_its_own_devices(
    slots: Callable[..., Slots], tmp_path: Path
) -> None:
    install(tmp_path, "installed", "import os; IMPORTED_BY = os.getpid()")
    two = slots("import installed; PACKAGE = installed.IMPORTED_BY")
    reports = []
    for device in ("0", "1"):
        zygote = two.fork(device)
        reports.append(two.start(zygote))
        assert gone(zygote).status == 0
        assert reports[-1]["parent"] == zygote.pid

    assert [report["devices"] for report in reports] == ["0", "1"]
    assert [report["imported_by"] for report in reports] == [report["pid"] for report in reports]
    assert [report["package"] for report in reports] == [two.importer.pid] * 2


def test_a_slow_program_that_leaves_no_trace_is_executed_once_for_all_slots(slots: Callable[..., Slots]) -> None:
    two = slots(SLOW)
    scout = scout_of(two.importer)
    reports = []
    for device in ("0", "1"):
        zygote = two.fork(device)
        reports.append(two.start(zygote))
        assert gone(zygote).status == 0

    assert [report["devices"] for report in reports] == ["0", "1"]
    assert [report["imported_by"] for report in reports] == [scout] * 2


def test_a_slow_program_that_leaves_a_trace_is_executed_by_each_trial_and_the_reason_is_known(
    slots: Callable[..., Slots], tmp_path: Path
) -> None:
    (tmp_path / "data").touch()
    one = slots(f"{SLOW}HELD = open({str(tmp_path / 'data')!r})")
    zygote = one.fork("0")

    report = one.start(zygote)

    assert report["imported_by"] == report["pid"]
    assert f"it has opened {tmp_path / 'data'}" in zygote.environment["start"]


@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("where", ["package", "slow program", "quick program"])
def test_an_import_for_all_slots_that_reads_their_devices_serves_only_slots_with_the_same(
    slots: Callable[..., Slots], tmp_path: Path, looks: str, where: str
) -> None:
    install(tmp_path, "installed", LOOKS[looks])
    codes = {"package": "import installed", "slow program": f"{LOOKS[looks]}\n{SLOW}", "quick program": LOOKS[looks]}
    importer = slots(codes[where]).importer

    assert importer.serves({DEVICES: "0"})
    # Each trial executes a quick program itself, with its own devices.
    assert importer.serves({DEVICES: "1"}) is (looks == "does not" or where == "quick program")


def test_what_a_trial_has_imported_late_may_look_at_devices_too(slots: Callable[..., Slots], tmp_path: Path) -> None:
    install(tmp_path, "looks_late", LOOKS["reads"])
    two = slots()
    late = LateImports(tmp_path)
    late.learn(two.importer.key.spec, [({}, ["looks_late"])])
    assert two.importer.serves({DEVICES: "1"})

    two.importer.get_ready(late)

    assert not two.importer.serves({DEVICES: "1"})
    assert two.importer.imports == 2


def test_devices_that_an_import_has_set_itself_are_those_of_its_trials(slots: Callable[..., Slots]) -> None:
    two = slots("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '7'\n")

    assert [two.start(two.fork(device))["devices"] for device in ("0", "1")] == ["7", "7"]


def test_each_trial_executes_a_program_that_changes_its_devices_and_starts_a_thread_anew(
    slots: Callable[..., Slots],
) -> None:
    one = slots(
        "import os, threading\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] += '+'\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )

    for _ in range(2):
        zygote = one.fork("0")
        report = one.start(zygote)
        assert gone(zygote).status == 0
        assert (report["devices"], report["imported_by"]) == ("0+", report["pid"])


def test_a_program_that_opens_a_device_is_executed_only_once_the_trial_before_has_ended(
    slots: Callable[..., Slots], tmp_path: Path
) -> None:
    """No child can use a device that its parent has opened, and the trial before may still have all of its memory."""
    device = tmp_path / "nvidia0"
    device.touch()
    two = slots(
        "from mqtune.trainable.process import footprint\n"
        f"footprint.DEVICE_FILES = ({str(device)!r},)\nHELD = open({str(device)!r})\n"
    )
    zygote = two.fork("1")
    eventually(lambda: psutil.Process(zygote.pid).children())

    report = two.start(zygote, waits=True)

    assert (report["devices"], report["imported_by"]) == ("1", report["pid"])
    # Of the trial, and of the process for the next one.
    eventually(lambda: len(psutil.Process(zygote.pid).children()) == 2)
    tree = [psutil.Process(two.importer.pid), *psutil.Process(two.importer.pid).children(recursive=True)]
    assert [process.pid for process in tree if str(device) in {file.path for file in process.open_files()}] == [
        report["pid"]
    ]
    assert two.importer.serves({DEVICES: "1"})
    zygote.kill(report["pid"])
    gone(zygote)


#: Uses OpenMP, as PyTorch does.
PARALLEL: Final = """
import numpy
from sklearn.ensemble import HistGradientBoostingRegressor

def fit():
    x = numpy.random.rand(2000, 4)
    HistGradientBoostingRegressor(max_iter=2).fit(x, x[:, 0])

fit()
"""
#: And does so in a trial.
IN_TRIAL: Final = """
import mqtune
report, mqtune.report = mqtune.report, lambda metrics: (fit(), report(metrics))
"""


@pytest.mark.parametrize("where", ["package", "slow program"])
def test_a_trial_computes_in_parallel_behind_an_import_that_has(
    slots: Callable[..., Slots], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    install(tmp_path, "parallel", PARALLEL)
    one = slots((SLOW + PARALLEL if where == "slow program" else "from parallel import fit") + IN_TRIAL)
    zygote = one.fork("0")

    # A child of a process with a pool of threads would wait for them for ever.
    report = one.start(zygote)

    assert (report["imported_by"] == report["pid"]) is (where == "package")
    assert gone(zygote).status == 0


#: The process that imports, and the code of a program for which that forks zygotes.
WHICH: Final = {"importer": "", "importer behind its scout": SLOW, "scout": SLOW}


@pytest.mark.parametrize("which", WHICH)
def test_an_importer_that_is_killed_takes_no_trial_along(slots: Callable[..., Slots], which: str) -> None:
    two = slots(WHICH[which])
    zygote = two.fork("0")
    trial = psutil.Process(two.start(zygote, waits=True)["pid"])
    scouts = [scout_of(two.importer)] if WHICH[which] else []

    os.kill(scouts[0] if which == "scout" else two.importer.pid, signal.SIGKILL)
    eventually(lambda: two.importer.is_dead)

    eventually(lambda: all(map(is_gone, scouts)))
    assert lives(trial)
    zygote.kill(trial.pid)
    assert os.WTERMSIG(gone(zygote).status or 0) == signal.SIGKILL
    # It forks no more.
    assert not two.importer.is_current()
    with pytest.raises(ZygoteDied):
        two.fork("1")
    zygote.close()


@pytest.mark.parametrize("which", WHICH)
def test_an_importer_that_is_frozen_is_killed_and_takes_no_trial_along(slots: Callable[..., Slots], which: str) -> None:
    two = slots(WHICH[which], Timing(zygote_start_s=3.0))
    zygote = two.fork("0")
    trial = psutil.Process(two.start(zygote, waits=True)["pid"])
    if which == "importer behind its scout":
        # It does nothing any more.
        os.kill(two.importer.pid, signal.SIGSTOP)
        two.fork("1")
    os.kill(two.importer.pid if which == "importer" else scout_of(two.importer), signal.SIGSTOP)

    with pytest.raises(ZygoteSilent, match=r"forked no zygote within 3 s and was killed"):
        two.fork("1")

    assert two.importer.is_dead
    assert lives(trial)
    zygote.kill(trial.pid)
    gone(zygote)
    zygote.close()


def test_an_import_that_fails_says_with_which_error_and_of_which_type(tmp_path: Path) -> None:
    (tmp_path / "job_code.py").write_text("import not_installed\n")
    key = import_key(TrainableSpec("says", module="job_code"), tmp_path)
    importer = Importer(key, {}, tmp_path / "log", varies=[DEVICES])
    try:
        with pytest.raises(ImportFailed, match=r"No module named 'not_installed'\n?$") as found:
            importer.get_ready(LateImports(tmp_path))
    finally:
        importer.end()
        importer.close()

    assert found.value.kind == "ModuleNotFoundError"


def large_pages(pid: int) -> int:
    """How many bytes of a process lie in large pages."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages:"))


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir()
    or tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1),
    reason="the kernel puts no memory that is in use into large pages",
)
def test_what_is_imported_lies_in_large_pages_which_a_fork_copies_sooner(slots: Callable[..., Slots]) -> None:
    one = slots(f"{SLOW}HELD = bytearray(64 << 20)\n")

    assert large_pages(scout_of(one.importer)) >= 48 << 20
    assert one.start(one.fork("0"))["devices"] == "0"


#: Holds some 100 MB, so that a copy in each slot would show beside the few MB that each process has of its own.
HOLDS: Final = "import random; HELD = [str(random.random()) for _ in range(1_200_000)]\n"


@pytest.mark.parametrize("where", ["package", "slow program"])
def test_eight_slots_take_little_more_memory_than_one(slots: Callable[..., Slots], tmp_path: Path, where: str) -> None:
    install(tmp_path, "holds", HOLDS)
    slots_ = slots("import holds" if where == "package" else HOLDS)
    scouts = len(psutil.Process(slots_.importer.pid).children())
    slots_.fork("0")
    eventually(lambda: len(psutil.Process(slots_.importer.pid).children(recursive=True)) == scouts + 2)
    with_one = slots_.importer.size

    for device in range(1, 8):
        slots_.fork(str(device))
    eventually(lambda: len(psutil.Process(slots_.importer.pid).children(recursive=True)) == scouts + 16)

    assert with_one > 64 << 20
    assert slots_.importer.size < 1.35 * with_one
