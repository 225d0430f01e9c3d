"""A few runs of the campaign: each kind of fault, on experiments of each kind; ``python -m tests.chaos`` runs more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
#: The faults of each run, by its seed. The seed also decides the experiments and the moments of the faults.
RUNS = {
    121: "nobody drives, driver killed, zygote frozen, importer frozen, key lost, foreign traffic, thread raises, memory made, second driver, redis frozen, importer killed, copy deleted, redis set back",
    # The first experiment has a searcher with a memory, which its next driver rebuilds.
    131: "request made, request doubled, driver killed, answer lost, operator oversteps, task revoked, device broken, device spoils, worker joins, driver cut",
    141: "failover, driver killed, worker frozen, driver held, worker killed, driver slow, worker slow, machine killed, subscribers killed",
    151: "host frozen, host killed, driver killed, redis killed, host terminated, machine frozen, worker lost bytes, worker drained, worker cut, zygote killed, orders forged",
    161: "seat struck, driver interrupted, seat struck, worker terminated, seat struck, trial killed, worker held, clients paused, memory full, driver frozen, login refused",
    # With two experiments, both of which run on without a driver.
    195: "memory ended, standing changed, quota changed, head node starved, driver killed, worker killed, clients killed, queue lost, redis forgets a claim, driver lost bytes, store away, redis emptied",
}
#: Runs that take place at the same time.
TOGETHER = [(121, 141, 161), (131, 151, 195)]
#: A run has a deadline of its own.
STUCK_S = 280


def test_each_kind_of_fault_has_a_run() -> None:
    assert {kind for seeds in TOGETHER for seed in seeds for kind in RUNS[seed].split(", ")} == set(FAULTS)


@pytest.mark.timeout(STUCK_S + 10)
@pytest.mark.parametrize("seeds", TOGETHER, ids=str)
@pytest.mark.usefixtures("server_binary")
def test_a_run_keeps_all_promises(seeds: tuple[int, ...], tmp_path: Path) -> None:
    # Runs wait more than they compute. With all at the same time, each would take the others' work for a
    # stalling machine.
    runs = [(seed, start(seed, tmp_path)) for seed in seeds]
    try:
        for seed, run in runs:
            said, _ = run.communicate(timeout=STUCK_S)

            outcome = json.loads(said.splitlines()[-1])
            assert outcome["violations"] == [], f"python -m tests.chaos {' '.join(arguments(seed))}: {outcome}"
    finally:
        for _, run in runs:
            run.kill()
            run.communicate()


def arguments(seed: int) -> list[str]:
    return ["--seed", str(seed), "--times", "short", "--kinds", RUNS[seed]]


def start(seed: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start a run in a process of its own, whose end ends all that it has started."""
    command = [sys.executable, "-m", "tests.chaos", "--one", *arguments(seed), "--folder", str(folder / f"run-{seed}")]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
