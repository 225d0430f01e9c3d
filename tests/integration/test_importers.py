"""One import for all slots: zygotes that share it and find their own devices, and imports that can't be shared."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from attempts import gone
from test_zygotes import Trials, frames
from waiting import eventually, is_gone, lives

from mqtune.core.timing import Timing
from mqtune.services.late_imports.known import LateImports
from mqtune.trainable import FRAME_REPORT
from mqtune.worker import ImporterHandle, ZygoteDied, ZygoteHandle, ZygoteSilent

DEVICES: Final = "CUDA_VISIBLE_DEVICES"

CODE: Final = f"""
import os, random, time
import mqtune

PID = os.getpid()

def says(config):
    package = globals().get("PACKAGE", 0)
    found = {{"devices": os.environ["{DEVICES}"], "imported_by": PID, "parent": os.getppid(), "package": package}}
    mqtune.report({{**found, "drawn": random.random()}})
    while config.get("waits"):
        time.sleep(0.01)
"""
#: Imported code that reads the slot's devices, and code that does not.
LOOKS: Final = {
    "reads": f"import os; DEVICE = os.environ.get('{DEVICES}')",
    "does not": "import os; HOME = os.environ.get('HOME')",
}
#: The first lines of a program that takes so long that it is executed once for all trials.
SLOW: Final = "import time\nwhile time.process_time() < 1: pass\n"


class Slots(Trials):
    """An importer, and a slot for each device: a zygote, and the trial that it runs."""

    def __init__(self, folder: Path, code: str = "", timing: Timing = Timing()) -> None:
        super().__init__(folder, "says", f"{code}\n{CODE}", {DEVICES: "0"}, varies=[DEVICES], timing=timing)
        self.importer.get_ready(LateImports(folder))

    def fork(self, device: str) -> ZygoteHandle:
        self.zygote = self.importer.fork({DEVICES: device}, self.folder / f"log-{device}")
        return self.zygote

    def says(self, **config: Any) -> dict[str, Any]:
        """Start a trial in the last slot, and return its report."""
        pid, pipe = self.start(config)
        kind, (_, report) = next(frames(pipe))
        assert kind == FRAME_REPORT
        return {"pid": pid, **report}


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Slots]]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site-packages"))
    with contextlib.ExitStack() as made:
        yield lambda *of: made.enter_context(contextlib.closing(Slots(tmp_path, *of)))


def install(folder: Path, name: str, code: str) -> None:
    """Write a package as if it were installed."""
    (folder / "site-packages").mkdir(exist_ok=True)
    (folder / "site-packages" / f"{name}.py").write_text(code)


def scout_of(importer: ImporterHandle) -> int:
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
        reports.append(two.says())
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
        reports.append(two.says())
        assert gone(zygote).status == 0

    assert [report["devices"] for report in reports] == ["0", "1"]
    assert [report["imported_by"] for report in reports] == [scout] * 2


@pytest.mark.parametrize("speed", ["", SLOW])
def test_trials_draw_what_the_program_has_seeded(slots: Callable[..., Slots], speed: str) -> None:
    two = slots(f"{speed}import random\nrandom.seed(1)")
    two.fork("0")

    assert two.says()["drawn"] == random.Random(1).random()


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


def test_a_trial_computes_in_parallel_behind_an_import_that_has(
    slots: Callable[..., Slots], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    install(tmp_path, "parallel", PARALLEL)
    one = slots("from parallel import fit" + IN_TRIAL)
    zygote = one.fork("0")

    # A child of a process with a pool of threads would wait for them for ever.
    report = one.says()

    assert report["imported_by"] == report["pid"]
    assert gone(zygote).status == 0


#: The process that imports, and the code of a program for which that forks zygotes.
WHICH: Final = {"importer": "", "importer behind its scout": SLOW, "scout": SLOW}


@pytest.mark.parametrize("which", WHICH)
def test_an_importer_that_is_killed_takes_no_trial_along(slots: Callable[..., Slots], which: str) -> None:
    two = slots(WHICH[which])
    zygote = two.fork("0")
    trial = psutil.Process(two.says(waits=True)["pid"])
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
    trial = psutil.Process(two.says(waits=True)["pid"])
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
