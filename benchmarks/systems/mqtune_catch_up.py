"""A new mqtune driver on a long journal in a real Redis: read, copied to disk, folded, and shown to ASHA."""

from __future__ import annotations

import random
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measurement import Context, Figures
from benchmarks.work.catch_up import BATCHES

if TYPE_CHECKING:
    from mqtune.driver.loop import Driver
    from mqtune.journal.base import Claim
    from mqtune.journal.redis import RedisJournal

__all__ = ["measure"]

_LEASE_S: Final = 3_600.0
#: No trial comes so far: what is measured is reading, and not stopping.
_MAX_T: Final = 10**9


def measure(context: Context) -> Figures:
    """Measure the time from a driver's first read to where it could go on, without a copy of the journal and with one."""
    from mqtune.backends.local.server import EmbeddedServer
    from mqtune.journal.connection import connect
    from mqtune.journal.redis import RedisJournal

    figures: Figures = {}
    for name, (trials, batch) in BATCHES.items():
        folder = context.folder / name
        folder.mkdir()
        with EmbeddedServer.start(folder) as server:
            client = connect(server.url)
            journal = RedisJournal(client, name)
            journal.lock("benchmark", "benchmark", _LEASE_S)
            written = _fill(journal, trials, context.sizes["reports"], batch)
            figures[f"{name}_s"] = _catch_up(journal, folder, trials, written)
            figures[f"{name}_copy_s"] = _catch_up(journal, folder, trials, written)
            client.close()
    for name, end in (("entry_us", "s"), ("entry_copy_us", "copy_s")):
        figures[name] = (figures[f"single_{end}"] - figures[f"flood_{end}"]) / context.sizes["reports"] * 1e6
    figures["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return figures


def _fill(journal: RedisJournal, trials: int, reports: int, batch: int) -> int:
    """Write as many reports, as workers would, and return how many these are."""
    from mqtune.core.codec import encode_value, pack_metrics, segment_bytes
    from mqtune.core.events import ExperimentCreated
    from mqtune.journal.base import Segment

    created = ExperimentCreated(name=journal.experiment, definition={}, at=1.0)
    journal.record(created.encode(), definition=encode_value({}))
    claims = [_start(journal, number) for number in range(1, trials + 1)]
    sequences = [0] * trials
    rng = random.Random(7)
    each = max(1, batch // trials)
    written = turn = 0
    while written < reports:
        segments = []
        for _ in range(min(batch, trials)):
            claim, first = claims[turn], sequences[turn] + 1
            numbers = range(first, first + each)
            packed = [pack_metrics(1.7e9, {"loss": rng.random(), "training_iteration": n}) for n in numbers]
            data = segment_bytes(claim.trial, claim.attempt, first, packed)
            segments.append(Segment(claim, first, each, 1.7e9, data))
            sequences[turn] += each
            written += each
            turn = (turn + 1) % trials
        journal.report(segments)
    return written


def _start(journal: RedisJournal, number: int) -> Claim:
    from mqtune.core.events import START, AttemptStarted, TrialStaged
    from mqtune.core.trial import TrialId
    from mqtune.journal.base import Assignment, Claim

    trial = TrialId(f"{number:04d}")
    staged = TrialStaged(trial=trial, attempt=1, config={}, at=1.0, cursor=START, suggested=False, by="user")
    journal.stage(trial, 1, Assignment({}), staged.encode())
    claim = Claim(trial, 1, f"token-{trial}")
    started = AttemptStarted(trial=trial, attempt=1, worker="w", host="h", devices=[], at=1.0)
    journal.claim(claim, "w", _LEASE_S, started.encode())
    return claim


def _catch_up(journal: RedisJournal, folder: Path, trials: int, reports: int) -> float:
    driver = _driver(journal, folder)
    begin = time.perf_counter()
    driver.begin(journal.experiment, {}, is_new=False, driver="benchmark")
    taken_s = time.perf_counter() - begin
    if (len(driver.experiment.trials), driver.experiment.reports) != (trials, reports):
        raise RuntimeError(f"{driver.experiment.reports} reports of {len(driver.experiment.trials)} trials were read")
    driver.reader.close()
    return taken_s


def _driver(journal: RedisJournal, folder: Path) -> Driver:
    from mqtune.core.experiment import Experiment
    from mqtune.driver.checkpoints import CheckpointGC
    from mqtune.driver.loop import Driver
    from mqtune.driver.retention import Retention
    from mqtune.driver.settings import Limits
    from mqtune.journal.clock import ServerClock
    from mqtune.journal.copy import JournalFile
    from mqtune.results.callbacks import CallbackDispatcher
    from mqtune.schedulers.asha import ASHA
    from mqtune.search.domains import uniform
    from mqtune.search.random import RandomSearcher
    from mqtune.search.space import Space

    scheduler = ASHA(_MAX_T, grace_period=_MAX_T)
    scheduler.bind("loss", "min")
    experiment = Experiment(journal.experiment, metric="loss", mode="min")
    return Driver(
        journal=journal,
        backend=_NoSlots(),
        experiment=experiment,
        scheduler=scheduler,
        searcher=RandomSearcher(Space({"lr": uniform(0, 1)}), seed=0),
        space=Space({"lr": uniform(0, 1)}),
        limits=Limits(),
        checkpoints=CheckpointGC(experiment, Retention(), None, delete_checkpoints=False),
        is_lockstep=False,
        copy=JournalFile(folder / "journal.msgpack"),
        callbacks=CallbackDispatcher([]),
        holder="benchmark",
        clock=ServerClock(journal._client),
    )


class _NoSlots:
    """A backend without a slot: nothing is started."""

    slots = 0

    def refresh(self) -> None:
        """Do nothing."""

    def started(self, *_: Any) -> None:
        """Do nothing."""

    def ended(self, *_: Any) -> None:
        """Do nothing."""

    def publish(self, *_: Any) -> None:
        """Do nothing."""

    def queued(self) -> None:
        """Return that nobody knows."""

    def why_no_slot(self) -> str:
        """Say that there is none."""
        return "there is none"

    def offered(self, _: Any) -> int:
        """Return that nothing is offered."""
        return 0

    def free(self, _: Any) -> int:
        """Return that nothing is free."""
        return 0

    def resource_string(self) -> str:
        """Say that there is nothing."""
        return "no worker"

    def has_gpus(self) -> None:
        """Return that nobody knows."""

    def close(self) -> None:
        """Do nothing."""
