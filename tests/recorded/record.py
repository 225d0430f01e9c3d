"""Record the experiments of this folder: run them, and keep each one's journal with what its results say.

    python tests/recorded/record.py FOLDER [NAME …]

They were recorded with mqtune as it was before its modules moved into folders: with the interface of then. What is recorded
anew, with a later version, goes beside them and replaces none.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE)]

import recorded_trainables as trainables  # noqa: E402

import mqtune  # noqa: E402

#: Bytes of its journal after which the driver of an unfinished experiment is killed.
CUT: Final = {"cut-asha": 14_000, "cut-pbt": 14_000, "taken-over": 12_000}


def tuner_of(name: str, trainable: Any, *, steps: int = 9, step_s: float = 0.005, **options: Any) -> Any:
    space = {"x": mqtune.uniform(0, 1), "steps": steps, "step_s": step_s}
    given = {"metric": "loss", "mode": "min", "local_slots": 2, "progress": False, "seed": 7, **options}
    return mqtune.Tuner(trainable, space, name=name, **given)


def asha() -> Any:
    return tuner_of(
        "asha",
        trainables.steady,
        scheduler=mqtune.ASHA(9, grace_period=1, reduction_factor=3),
        max_trials=24,
        tags=["recorded", "baseline"],
        notes="Reports flow, and most trials are stopped early.",
    )


def pbt() -> Any:
    return tuner_of(
        "pbt",
        trainables.Counts,
        steps=12,
        scheduler=mqtune.PBT(3, {"x": mqtune.uniform(0, 1)}, population_size=5, seed=3),
        max_trials=5,
    )


def promotion() -> Any:
    return tuner_of(
        "promotion",
        trainables.Counts,
        scheduler=mqtune.PromotionASHA(9),
        max_trials=18,
        retention=mqtune.Retention(1, 1),
    )


def hyperband() -> Any:
    return tuner_of(
        "hyperband", trainables.breaks, scheduler=mqtune.HyperBand(9), max_trials=22, max_failures=1, sync="lockstep"
    )


def rules() -> Any:
    return tuner_of(
        "rules",
        trainables.steady,
        scheduler=mqtune.MedianStopping(grace_period=2, min_samples=3),
        stop=mqtune.TargetReached(0.101) | mqtune.TimeLimit(600),
        points_to_evaluate=[{"x": 0.9}, {"x": 0.4}],
        max_trials=12,
        delete_checkpoints="stopped",
    )


def by_hand() -> Any:
    return tuner_of("by-hand", trainables.Counts, steps=150, step_s=0.02, max_trials=40)


def cut_asha() -> Any:
    return tuner_of("cut-asha", trainables.steady, step_s=0.03, scheduler=mqtune.ASHA(9), max_trials=14)


def cut_pbt() -> Any:
    scheduler = mqtune.PBT(3, {"x": mqtune.uniform(0, 1)}, population_size=4, seed=3, synchronous=True)
    return tuner_of("cut-pbt", trainables.Counts, steps=12, step_s=0.03, scheduler=scheduler, max_trials=4)


def taken_over() -> Any:
    return tuner_of("taken-over", trainables.steady, step_s=0.03, scheduler=mqtune.PromotionASHA(9), max_trials=14)


def steer(tuner: Any) -> None:
    """Do to single trials all that a person can."""

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, tuner.debug_string()
            tuner.step(0.05)

    def trial(number: int) -> Any:
        return tuner.get_trial(f"{number:04}")

    def runs(number: int, reports: int = 3) -> None:
        until(lambda: len(tuner.get_trials()) >= number and trial(number).status.is_running)
        begun = trial(number).reports
        until(lambda: trial(number).reports >= begun + reports)

    def ended(number: int) -> None:
        until(lambda: trial(number).status.is_terminal)

    runs(1), runs(2)
    tuner.annotate_trial(trial(1), tags=["odd"], notes="Look at this one.")
    tuner.save_trial(trial(1))
    tuner.stop_trial(trial(1))
    tuner.abandon_trial(trial(2), "a mistake")
    ended(1), ended(2)
    runs(3), runs(4)
    tuner.complete_trial(trial(3))
    tuner.fail_trial(trial(4), "it diverges")
    ended(3), ended(4)
    runs(5), runs(6)
    tuner.pause_trial(trial(5))
    until(lambda: trial(5).status.is_paused)
    tuner.restart_trial(trial(6), {"x": 0.25}, source=trial(5))
    until(lambda: len(trial(6).attempts) == 2)
    tuner.resume_trial(trial(5), {"x": 0.35})
    until(lambda: trial(5).status.is_running)
    tuner.add_trial(
        {"x": 0.31}, source=trial(3), checkpoint="best", tags=["by hand"], notes="From the one that is complete."
    )
    tuner.pause_trial(trial(5), "again")
    until(lambda: trial(5).status.is_paused)
    for each in tuner.get_trials():
        if each.status.is_running and each.id != "0006":
            tuner.stop_trial(each, "a slot is wanted")
    until(lambda: any(each.labels.tags == ("by hand",) and each.reports > 2 for each in tuner.get_trials()))
    tuner.start_trial({"x": 0.5})
    tuner.abandon_trial(trial(5), "not needed")
    tuner.annotate(tags=["steered"], notes="Every trial was in somebody's hands.")
    tuner.stop_all("enough")


EXPERIMENTS: Final = {
    make.__name__.replace("_", "-"): make
    for make in (asha, pbt, promotion, hyperband, rules, by_hand, cut_asha, cut_pbt, taken_over)
}


def run(name: str) -> None:
    tuner = EXPERIMENTS[name]()
    if name == "by-hand":
        steer(tuner)
    tuner.run()


def kill_one(name: str, journal: Path) -> None:
    """Begin an experiment, and kill its driver in the middle."""
    driver = subprocess.Popen([sys.executable, __file__, "run", name], start_new_session=True)
    while not journal.exists() or journal.stat().st_size < CUT[name]:
        assert driver.poll() is None, "it ended first"
        time.sleep(0.005)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    time.sleep(3)


def record(name: str, target: Path) -> None:
    from said import said, text_of

    home = Path(os.environ["MQTUNE_HOME"]) / name
    shutil.rmtree(home, ignore_errors=True)
    if name in CUT:
        kill_one(name, home / "journal.msgpack")
    if not name.startswith("cut-"):
        subprocess.run([sys.executable, __file__, "run", name], check=True)
    folder = target / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(home / "journal.msgpack", folder)
    (folder / "said.json").write_text(text_of(said(mqtune.Results.load(name))) + "\n")
    if name == "cut-pbt":
        shutil.copytree(home / "checkpoints", folder / "checkpoints")


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2])
    else:
        for each in sys.argv[2:] or EXPERIMENTS:
            record(each, Path(sys.argv[1]))
