"""Redis fails over under a real driver and a real worker: Sentinels make the replica the master, and all follow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import trainables
from faces import said
from pages import ROOT
from running import running_worker, tuner_on
from sentinels import Watched
from waiting import eventually

import mqtune
from mqtune.core.errors import BrokerUnavailable
from mqtune.core.keys import ExperimentKeys
from mqtune.core.trial import FORGOTTEN, TrialStatus
from mqtune.journal import connect

#: How long anything here may take, on a machine that runs other tests.
BACK_S: Final = 60.0
STEPS: Final = 100


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with Watched(tmp_path_factory.mktemp("sentinels")) as watched:
        yield watched


@pytest.fixture(scope="module")
def worker(watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    log = tmp_path_factory.mktemp("worker") / "worker.log"
    with running_worker(watched.url, log, "--gpus", "0", "--slots", "2"):
        yield log


@pytest.mark.usefixtures("worker")
def test_a_failover_loses_no_report_also_when_the_new_master_lacks_the_last_second(watched: Watched) -> None:
    name = "failover"
    journal = ExperimentKeys(name).journal

    def fail_over() -> None:
        master = watched.master
        eventually(lambda: master.client.xlen(journal) >= 20, BACK_S)
        replica = watched.cut_off_replica()
        had = replica.client.xlen(journal)
        eventually(lambda: master.client.xlen(journal) >= had + 20, BACK_S)
        master.kill()
        eventually(lambda: watched.is_master(replica), BACK_S)

    space = {"steps": STEPS, "step_s": 0.02, "saves": False, "x": mqtune.uniform(0, 1)}
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(fail_over)
        results = tuner_on(watched.url, trainables.counts, space, name=name, max_trials=3).run()
        done.result(BACK_S)

    assert [trial.status for trial in results.trials] == [TrialStatus.COMPLETED] * 3
    for trial in results.trials:
        last = [each.metrics["step"] for each in results.reports(trial.id) if each.attempt == len(trial.attempts)]
        assert last == list(range(1, STEPS + 1))
    # What was under way began again; no failure is counted.
    ends = {attempt.error_type for trial in results.trials for attempt in trial.attempts}
    assert {FORGOTTEN} <= ends <= {"", FORGOTTEN, "Gap"}
    shown = said("list", "--broker", watched.url)
    assert (name in shown, "hunter" in shown, "zebra" in shown) == (True, False, False)


@pytest.mark.usefixtures("worker")
def test_doctor_says_who_is_the_master(watched: Watched) -> None:
    shown = said("doctor", "--broker", watched.url)

    assert f"the master is 127.0.0.1:{watched.master.port}; 3 of 3 Sentinels agree" in shown
    assert "1 connected, 2 slots" in shown


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("/tuning/", "/nothing/"), "knows a running master of that name (they answer)"),
        (("zebra+7", "wrong"), "AuthenticationError"),
        (("?sentinel_password=zebra+7", ""), "Authentication"),
        (("hunter%2F2", "wrong"), "refuses the login"),
    ],
)
def test_what_is_wrong_in_the_url_is_said_and_no_password(watched: Watched, change: tuple[str, str], text: str) -> None:
    with pytest.raises(BrokerUnavailable) as caught:
        connect(watched.url.replace(*change))

    assert text in str(caught.value)
    assert "hunter" not in str(caught.value)
    assert "zebra" not in str(caught.value)


def test_sentinels_with_accounts_need_allow_no_more_than_the_guide_says(watched: Watched) -> None:
    guide = (ROOT / "docs" / "how-to" / "failover.md").read_text()
    (line,) = [line for line in guide.splitlines() if line.startswith("ACL SETUSER")]
    for sentinel in watched.sentinels:
        sentinel.client.execute_command(*line.replace(">PASSWORD", ">otter").split())
        sentinel.client.acl_log_reset()
    login = "sentinel_username=looker&sentinel_password=otter"

    with contextlib.closing(connect(watched.url.replace("sentinel_password=zebra+7", login))) as client:
        assert client.ping()
    assert [sentinel.client.acl_log() for sentinel in watched.sentinels] == [[], [], []]
