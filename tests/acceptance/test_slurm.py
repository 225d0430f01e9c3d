"""A worker's job on a real Slurm, of this test's own: it comes back when its time is up, and not when it is cancelled."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kept_port import KeptPort
from pages import ROOT
from started import JOIN_S, started
from waiting import eventually

from mqtune.core.events import WorkerInfo
from mqtune.journal import Fleet, connect

pytestmark = [
    pytest.mark.skipif(
        not all(map(shutil.which, ("slurmctld", "slurmd", "sbatch"))),
        reason="needs Debian's slurm-wlm, or another Slurm",
    ),
]

#: One node, this machine, with a GPU that there is not, and no other program: neither munge nor a database.
CONFIGURATION = """
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:1
PartitionName=main Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """A cluster of one node, and a home with the broker's URL in it."""

    def __init__(self, folder: Path, broker: str, ports: tuple[int, int]) -> None:
        host = socket.gethostname().partition(".")[0]
        for each in ("state", "spool", "home/.config/mqtune", "code"):
            (folder / each).mkdir(parents=True)
        (folder / "home/.config/mqtune/broker").write_text(broker)
        (folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                cluster=f"test{os.getpid()}",
                host=host,
                ports=ports,
                user=os.environ.get("USER") or subprocess.check_output(["id", "-un"], text=True).strip(),
                folder=folder,
                cpus=os.cpu_count(),
            )
        )
        (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File=/dev/null\n")
        self.code = folder / "code"
        self.environment = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "HOME": str(folder / "home"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def run(self, *command: str) -> str:
        environment = {**os.environ, **self.environment}
        done = subprocess.run(command, env=environment, cwd=self.code, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_up(self) -> bool:
        with contextlib.suppress(AssertionError):
            return self.run("sinfo", "--noheader", "--format=%T").strip() in ("idle", "mixed")
        return False

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job."""
        return dict(re.findall(r"(\w+)=(\S+)", self.run("scontrol", "show", "job", number)))


@pytest.fixture
def slurm(broker: str, tmp_path: Path) -> Iterator[Slurm]:
    with contextlib.closing(KeptPort()) as one, contextlib.closing(KeptPort()) as other:
        slurm = Slurm(tmp_path, broker, (one.number, other.number))
        with (
            started(["slurmctld", "-D"], slurm.environment, tmp_path / "slurmctld.out"),
            started(["slurmd", "-D"], slurm.environment, tmp_path / "slurmd.out"),
        ):
            eventually(slurm.is_up, JOIN_S)
            yield slurm


def test_a_workers_job_comes_back_when_its_time_is_up_and_not_when_it_is_cancelled(slurm: Slurm, broker: str) -> None:
    script = str(ROOT / "deploy/slurm/worker.sbatch")
    job = slurm.run("sbatch", "--parsable", "--array=1", "--cpus-per-task=1", "--mem=0", script).strip()
    with contextlib.closing(connect(broker)) as client:

        def workers() -> list[WorkerInfo]:
            return [each for each in Fleet(client, patience_s=5).workers() if each.name.startswith(f"slurm-{job}@")]

        (first,) = eventually(workers, JOIN_S)
        assert first.gpus == 1
        # As slurmd does 90 s before the end of the job's time.
        slurm.run("scancel", "--signal=USR1", "--batch", f"{job}_1")
        eventually(lambda: slurm.job(job)["Restarts"] == "1" and slurm.job(job)["JobState"] == "PENDING", JOIN_S)
        assert workers() == []
        # Slurm itself waits for two minutes. In the second in which it has ended a job's processes, it starts it no more.
        slurm.run("scontrol", "update", f"JobId={job}_1", "StartTime=now+2")
        (second,) = eventually(workers, JOIN_S)
        assert second.pid != first.pid

        slurm.run("scancel", job)
        eventually(lambda: slurm.job(job)["JobState"] == "CANCELLED" and not workers(), JOIN_S)
        assert slurm.job(job)["Restarts"] == "1"
