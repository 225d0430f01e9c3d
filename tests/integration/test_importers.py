"""One import for all slots: zygotes that share it and find their own devices, and imports that can't be shared."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from attempts import gone, start_message
from test_zygotes import frames
from waiting import eventually, lives

from mqtune.trainable.process.protocol import FRAME_REPORT
from mqtune.trainable.spec import TrainableSpec
from mqtune.worker import importers
from mqtune.worker.importers import Importer, ImportFailed, ImportKey
from mqtune.worker.late_imports import LateImports
from mqtune.worker.zygotes import ZygoteDied, ZygoteHandle, ZygoteSilent

DEVICES: Final = "CUDA_VISIBLE_DEVICES"

CODE: Final = f"""
import os, time
import mqtune

PID = os.getpid()

def says(config):
    mqtune.report({{"devices": os.environ["{DEVICES}"], "imported_by": PID, "parent": os.getppid()}})
    while config.get("waits"):
        time.sleep(0.01)
"""
#: What a module may find out on import of the devices that it may use.
LOOKS: Final = {
    "reads": f"import os; DEVICE = os.environ.get('{DEVICES}')",
    "does not": "import os; HOME = os.environ.get('HOME')",
}


class Slots:
    """An importer, and a slot for each device: a zygote, and the trial that it runs."""

    def __init__(self, folder: Path, code: str) -> None:
        self.folder = folder
        (folder / "job_code.py").write_text(code + CODE)
        key = ImportKey(TrainableSpec("says", module="job_code"), folder, "fork")
        self.importer = Importer(key, {DEVICES: "0"}, folder / "log", varies=[DEVICES])
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
def slots(tmp_path: Path) -> Iterator[Callable[..., Slots]]:
    made: list[Slots] = []

    def make(code: str = "") -> Slots:
        made.append(Slots(tmp_path, code))
        return made[-1]

    yield make
    for one in made:
        one.importer.close()


def test_slots_share_what_was_imported_once_and_each_trial_finds_its_own_devices(slots: Callable[..., Slots]) -> None:
    two = slots()
    reports = []
    for device in ("0", "1"):
        zygote = two.fork(device)
        reports.append(two.start(zygote))
        assert gone(zygote).status == 0
        assert reports[-1]["parent"] == zygote.pid

    assert [report["devices"] for report in reports] == ["0", "1"]
    assert [report["imported_by"] for report in reports] == [two.importer.pid] * 2


@pytest.mark.parametrize("looks", LOOKS)
def test_an_import_that_reads_which_devices_there_are_serves_only_slots_with_the_same(
    slots: Callable[..., Slots], looks: str
) -> None:
    importer = slots(LOOKS[looks] + "\n").importer

    assert importer.serves({DEVICES: "0"})
    assert importer.serves({DEVICES: "1"}) is (looks == "does not")


def test_what_a_trial_has_imported_late_may_look_at_devices_too(slots: Callable[..., Slots], tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "looks_late.py").write_text(LOOKS["reads"])
    two = slots(f"import sys; sys.path.append({str(tmp_path / 'site-packages')!r})\n")
    late = LateImports(tmp_path)
    late.learn(two.importer.key.spec, [({}, ["looks_late"])])
    assert two.importer.serves({DEVICES: "1"})

    two.importer.get_ready(late)

    assert not two.importer.serves({DEVICES: "1"})
    assert two.importer.imports == 2


def test_devices_that_an_import_has_set_itself_are_those_of_its_trials(slots: Callable[..., Slots]) -> None:
    two = slots("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '7'\n")

    assert [two.start(two.fork(device))["devices"] for device in ("0", "1")] == ["7", "7"]


def test_what_an_import_that_is_done_again_had_set_is_not_there(slots: Callable[..., Slots]) -> None:
    one = slots(
        "import os, threading\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] += '+'\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )

    report = one.start(one.fork("0"))

    assert (report["devices"], report["imported_by"]) == ("0+", report["pid"])


def test_behind_an_import_that_has_opened_a_device_each_trial_has_an_interpreter_of_its_own(
    slots: Callable[..., Slots], tmp_path: Path
) -> None:
    """No child can use a device that its parent has opened."""
    device = tmp_path / "nvidia0"
    device.touch()
    two = slots(
        "from mqtune.trainable.process import late_imports\n"
        f"late_imports.DEVICE_FILES = ({str(device)!r},)\nHELD = open({str(device)!r})\n"
    )
    zygote = two.fork("1")

    report = two.start(zygote)

    assert (report["devices"], report["imported_by"]) == ("1", report["pid"])
    assert zygote.environment["fresh"] == f"its imports have opened {device}"
    assert two.importer.serves({DEVICES: "1"})
    assert str(device) not in {file.path for file in psutil.Process(two.importer.pid).open_files()}


#: Uses OpenMP, as PyTorch does, on import and in its trials.
PARALLEL: Final = """
import numpy
from sklearn.ensemble import HistGradientBoostingRegressor

def fit():
    x = numpy.random.rand(2000, 4)
    HistGradientBoostingRegressor(max_iter=2).fit(x, x[:, 0])

fit()
import mqtune
report, mqtune.report = mqtune.report, lambda metrics: (fit(), report(metrics))
"""


def test_a_trial_computes_in_parallel_behind_an_import_that_has(
    slots: Callable[..., Slots], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    one = slots(PARALLEL)
    zygote = one.fork("0")

    # What has a pool of threads in its parent would wait for it for ever.
    report = one.start(zygote)

    assert report["imported_by"] == one.importer.pid
    assert gone(zygote).status == 0


def test_an_importer_that_is_killed_takes_no_trial_along(slots: Callable[..., Slots]) -> None:
    two = slots()
    zygote = two.fork("0")
    trial = psutil.Process(two.start(zygote, waits=True)["pid"])

    os.kill(two.importer.pid, signal.SIGKILL)
    eventually(lambda: two.importer.is_dead)

    assert lives(trial)
    zygote.kill(trial.pid)
    assert os.WTERMSIG(gone(zygote).status or 0) == signal.SIGKILL
    # It forks no more.
    assert not two.importer.is_current()
    with pytest.raises(ZygoteDied):
        two.fork("1")
    zygote.close()


def test_an_importer_that_is_frozen_is_killed_and_takes_no_trial_along(
    slots: Callable[..., Slots], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = slots()
    zygote = two.fork("0")
    trial = psutil.Process(two.start(zygote, waits=True)["pid"])
    monkeypatch.setattr(importers, "START_S", 0.3)
    os.kill(two.importer.pid, signal.SIGSTOP)

    with pytest.raises(ZygoteSilent, match=r"forked no zygote within 0\.3 s and was killed"):
        two.fork("1")

    assert two.importer.is_dead
    assert lives(trial)
    zygote.kill(trial.pid)
    gone(zygote)
    zygote.close()


def test_an_import_that_fails_says_with_which_error_and_of_which_type(tmp_path: Path) -> None:
    (tmp_path / "job_code.py").write_text("import not_installed\n")
    key = ImportKey(TrainableSpec("says", module="job_code"), tmp_path, "fork")
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
    one = slots("HELD = bytearray(64 << 20)\n")

    assert large_pages(one.importer.pid) >= 48 << 20
    assert one.start(one.fork("0"))["devices"] == "0"


def test_eight_slots_take_little_more_memory_than_one(slots: Callable[..., Slots]) -> None:
    slots_ = slots("import random; HELD = [str(random.random()) for _ in range(400_000)]\n")
    slots_.fork("0")
    eventually(lambda: len(psutil.Process(slots_.importer.pid).children(recursive=True)) == 2)
    with_one = slots_.importer.size

    for device in range(1, 8):
        slots_.fork(str(device))
    eventually(lambda: len(psutil.Process(slots_.importer.pid).children(recursive=True)) == 16)

    assert slots_.importer.size < 1.5 * with_one
