"""A trial that moves between two workers of mqtune: paused on one, resumed on the other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measurement import Context, Figures
from benchmarks.work import pause

if TYPE_CHECKING:
    from mqtune.core.trial import Attempt, Report, Trial
    from mqtune.schedulers.base import Scheduler

__all__ = ["measure"]

ROOT: Final = Path(__file__).parent.parent.parent
WORKERS: Final = ("one", "two")
STOP_S: Final = 20.0
#: The trial may be resumed where it was: both workers wait for it then. After so many resumes for each move that is
#: wanted, something keeps one of them from taking it at all.
RESUMES_A_MOVE: Final = 20


class Moves:
    """What is known of the resumes so far."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.made: list[dict[str, float]] = []
        self.stays = 0

    @property
    def is_done(self) -> bool:
        return len(self.made) >= self.wanted

    def note(self, trial: Trial, report: Report) -> None:
        """Take the first report of a resumed attempt in."""
        before, now = trial.attempts[-2:]
        if before.worker == now.worker:
            self.stays += 1
            if self.stays > RESUMES_A_MOVE * self.wanted:
                raise RuntimeError(f"{self.stays} resumes on worker {now.worker} alone, {len(self.made)} moves")
            return
        self.made.append(_parts(before, now, report.timestamp))


def measure(context: Context) -> Figures:
    """Pause one trial over and over, and time each resume that the other worker took."""
    import mqtune
    from benchmarks import trainables_saving
    from mqtune.backends.local.server import EmbeddedServer

    moves = Moves(context.sizes["moves"] + pause.WARM_UP)
    with EmbeddedServer.start(context.folder / "server") as server, _workers(context.folder, server.url):
        mqtune.Tuner(
            trainables_saving.pausing,
            {},
            metric="loss",
            mode="min",
            scheduler=_pausing(moves),
            backend=server.url,
            name="benchmark-pausing",
        ).run()
    if not moves.is_done:
        raise RuntimeError(f"{len(moves.made)} moves of {moves.wanted}")
    return pause.figures(moves.made[pause.WARM_UP :], stays=moves.stays)


def _parts(before: Attempt, now: Attempt, reported_at: float) -> dict[str, float]:
    """Return the seconds of each part, by the journal's times; the first is the decision, the last the trial's report."""
    assert before.stop is not None
    assert before.ended_at is not None
    assert now.started_at is not None
    times = (before.stop.at, before.ended_at, now.staged_at, now.started_at, reported_at)
    return {part: times[number + 1] - times[number] for number, part in enumerate(pause.PARTS)}


def _pausing(moves: Moves) -> Scheduler:
    """Return a scheduler that pauses its only trial and resumes it at once, until the moves are done."""
    from mqtune.core.trial import CONTINUE, Action, Decision, TrialStatus
    from mqtune.schedulers.base import START, Choice, Resume, Scheduler

    class Pausing(Scheduler):
        def __init__(self) -> None:
            self._trial: Trial | None = None

        def on_report(self, trial: Trial, report: Report) -> Decision:
            self._trial = trial
            if report.sequence == 1 and report.attempt > 1:
                moves.note(trial, report)
            if moves.is_done:
                return Decision(Action.COMPLETE, "moved often enough")
            if report.sequence == pause.PAUSE_AT:
                return Decision(Action.PAUSE, f"{pause.PAUSE_AT} reports")
            return CONTINUE

        def choose(self, *, can_start: bool) -> Choice:
            trial = self._trial
            return Resume(trial.id) if trial is not None and trial.status is TrialStatus.PAUSED else START

        def describe(self) -> dict[str, Any]:
            return {}

    return Pausing()


@contextlib.contextmanager
def _workers(folder: Path, broker: str) -> Iterator[None]:
    """Run two workers of one slot each."""
    processes = []
    for name in WORKERS:
        command = [sys.executable, "-m", "mqtune", "worker", "--name", name, "--gpus", "0", "--slots", "1"]
        with (folder / f"{name}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [*command, "--cpus", "1", "--code-root", str(ROOT), "--loglevel", "WARNING"],
                    env={**os.environ, "MQTUNE_BROKER": broker, "MQTUNE_LOG_ROOT": str(folder)},
                    stdout=log,
                    stderr=log,
                )
            )
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
