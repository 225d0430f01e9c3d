"""What trials of a real worker use of its machine: seen while they run and afterwards, by whom it may be, and warned of."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import Accounts
from altered_worker import altered_worker, let_go, tuner_of
from click.testing import CliRunner
from servers import EACH_SERVER, started_on
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer
from mqtune.cli import group
from mqtune.cli.ui.feed import Feeds
from mqtune.cli.ui.places import Places
from mqtune.cli.ui.views import fleet_page, usage
from mqtune.core.errors import AccessDenied
from mqtune.core.keys import ExperimentKeys
from mqtune.core.trial import AttemptEnd, Trial
from mqtune.core.usage import DeviceUse, LiveUse
from mqtune.journal import UsageBoard, connect
from mqtune.results.results import Results

HALF = mqtune.Resources(gpus=0.5, cpus=1)
#: How long what another process does may take on a busy machine.
SOON_S = 60.0
#: Answers as the driver would, with what a file says.
DRIVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if isinstance(asked, dict):
        print(json.dumps({{"use": {{each: json.load(open({file!r})) for each in asked["use"]}}}}), flush=True)
    else:
        print(json.dumps({{"used": dict.fromkeys(asked, 0), "unknown": {{}}}}), flush=True)
"""
#: A worker that asks it, and counts tenths of seconds where a real one counts minutes.
ALTERATION = """
import functools
from mqtune.worker import devices, runtime
timing = Timing(round_s=0.1, idle_s=0.4)
runtime.GpuProbe = functools.partial(devices.GpuProbe, [{python!r}, {driver!r}])
"""
USE = LiveUse(1, {"0": DeviceUse(87.0, 5e9, 412.0)}, 1.5, 2e9, {}, {"sampled_s": 10.0})


class Gpu:
    """A GPU that is used as a test says."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "use.json"
        driver = folder / "driver.py"
        driver.write_text(DRIVER.format(file=str(self._file)))
        self.alteration = ALTERATION.format(python=sys.executable, driver=str(driver))
        self.set(90)

    def set(self, percent: float | None) -> None:
        new = self._file.with_name("use.new")
        new.write_text(json.dumps([percent, 31_200_000_000, 412.0]))
        new.replace(self._file)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with EmbeddedServer.start(tmp_path / "server") as server:
        yield server.url


def has_reported(tuner: mqtune.Tuner, trial: Trial) -> None:
    eventually(lambda: tuner.step(0.05) or trial.attempt.reports, SOON_S)


def said(*arguments: str) -> str:
    done = CliRunner().invoke(group, [*arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_two_experiments_on_one_gpu_see_what_it_does_and_are_warned_of_when_it_does_nothing(
    broker: str, tmp_path: Path
) -> None:
    gpu = Gpu(tmp_path)
    options = ("--gpus", "0,", "--slots-per-gpu", "2", "--cpus", "2")
    with (
        altered_worker(broker, tmp_path, gpu.alteration, *options),
        tuner_of(broker, "mine", HALF) as mine,
        tuner_of(broker, "other", HALF) as other,
        contextlib.closing(Feeds(Places([], broker, broker_alone=True).find)) as feeds,
    ):
        first, second = mine.add({"number": 1}), other.add({"number": 2})
        has_reported(mine, first)
        has_reported(other, second)

        def shown(name: str) -> str:
            return said("show", name, "1", "--broker", broker)

        # While they run: on the command line, and on the page.
        eventually(lambda: "now device 0: 90 %, 31.2 GB, 412 W" in shown("mine"), SOON_S, "its use is shown")
        assert "2 slots share each device" in shown("mine")
        eventually(lambda: "now device 0: 90 %, 31.2 GB, 412 W" in shown("other"), SOON_S)
        rows = json.loads(said("fleet", "--broker", broker, "--json"))["runs"]
        assert [(row["experiment"], row["use"]["devices"]["0"]["percent"]) for row in rows] == [
            ("mine", 90),
            ("other", 90),
        ]
        assert said("fleet", "--broker", broker).count("90 %, 31.2 GB") == 2
        places = Places([], broker, broker_alone=True)
        [row] = usage(feeds.get("mine"), "0001")["attempts"]  # type: ignore[misc]
        assert (row["attempt"], row["warning"]) == (1, "")
        assert row["now"].startswith("device 0: 90 %, 31.2 GB, 412 W · ")
        runs: Any = fleet_page(places, feeds)["runs"]
        assert {run["experiment"]: run["use_text"] for run in runs} == {
            "mine": "90 %, 31.2 GB",
            "other": "90 %, 31.2 GB",
        }
        assert "leaves it idle" not in (tmp_path / "worker.log").read_text()

        # And when it stands idle.
        gpu.set(0)
        eventually(lambda: "holds device 0 and leaves it idle for " in shown("mine"), SOON_S, "the warning is shown")
        assert "trial 0001 leaves its GPU idle for " in said("show", "mine", "--broker", broker)
        eventually(lambda: said("fleet", "--broker", broker).count(" idle for ") == 2, SOON_S)
        [row] = usage(feeds.get("other"), "0001")["attempts"]  # type: ignore[misc]
        assert row["warning"].startswith("attempt 1 holds device 0 and leaves it idle for ")
        log = (tmp_path / "worker.log").read_text()
        assert (
            log.count("experiment mine, trial 0001 attempt 1 holds device 0 and leaves it idle, as do the other") == 1
        )
        assert (
            log.count("experiment other, trial 0001 attempt 1 holds device 0 and leaves it idle, as do the other") == 1
        )
        gpu.set(90)
        eventually(lambda: "has left a device idle for " in shown("mine"), SOON_S, "the spell is over")

        let_go(tmp_path, 1, 2)
        for each, trial in ((mine, first), (other, second)):
            eventually(lambda each=each, trial=trial: each.step(0.05) or trial.attempt.end, SOON_S)  # type: ignore[misc]

    # What is left of it afterwards is in the journal alone.
    figures = first.attempt.usage
    assert first.attempt.end is AttemptEnd.COMPLETED
    assert {"sampled_s", "gpu_percent", "gpu_energy_j", "memory_bytes_peak"} <= {*figures}
    assert (figures["gpu_percent_peak"], figures["gpu_memory_bytes_peak"], figures["gpu_slots"]) == (90, 31.2e9, 2)
    assert figures["gpu_idle_s"] >= 0.4
    assert 0 < figures["gpu_percent"] < 90
    after = said("show", "mine", "1")
    assert "GPU " in after
    assert "has left a device idle for " in after
    assert "now " not in after
    [attempt] = Results.load("mine").dataframe("attempts").to_dict("records")
    assert attempt["usage.gpu_percent_peak"] == 90


# Who may write and read it.


@pytest.fixture(params=EACH_SERVER)
def accounts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Accounts]:
    with (
        EmbeddedServer.start(tmp_path, binary=started_on(request)) as server,
        contextlib.closing(Accounts(server.url)) as accounts,
    ):
        yield accounts


def test_workers_write_it_and_whoever_may_look_reads_it_and_no_other_team(accounts: Accounts) -> None:
    ours, theirs = ("team-a-1", "w@h"), ("team-b-1", "w@h")
    with contextlib.ExitStack() as open_:

        def board(role: Any) -> UsageBoard:
            url = accounts.make(role, experiments="team-a-*")
            return UsageBoard(open_.enter_context(contextlib.closing(connect(url, role=role))))

        worker = board("worker")
        worker.write(ours, {"0001": USE})
        for role in ("driver", "operator", "monitor"):
            assert board(role).read([ours]) == {ours: {"0001": USE}}
        assert accounts.refused() == []

        # To those of other teams, as of an account of an earlier version, nothing is known.
        assert board("monitor").read([theirs]) == {}
        with pytest.raises(AccessDenied):
            worker.write(theirs, {"0001": USE})
        with pytest.raises(AccessDenied):
            board("monitor").write(ours, {})
        assert len(accounts.refused()) == 3
        assert 0 < accounts.admin.pttl(ExperimentKeys(ours[0]).usage(ours[1])) <= 30_000


def test_without_a_server_nothing_is_written_or_known_and_nobody_waits(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path) as server:
        client = connect(server.url)
    with contextlib.closing(client):
        UsageBoard(client).write(("mine", "w@h"), {"0001": USE})
        assert UsageBoard(client).read([("mine", "w@h")]) == {}
        assert UsageBoard(client).read([]) == {}
