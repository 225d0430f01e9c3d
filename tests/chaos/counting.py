"""Trainables whose every report can be checked: a sum that only whoever went on from the right checkpoint has."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from others import Others

import mqtune

#: Where a trial process writes down that it lives; beside the journal, which says what counts.
BEATS: Final = "MQTUNE_CHAOS_BEATS"
#: ``pid`` is the process that has counted so far, so that no state of another run of an attempt looks like it.
START: Final = {"step": 0, "total": 0, "pid": 0}
#: What a trial may do to mqtune by malice or mistake, in its first attempt; see misbehave.
MISCHIEF: Final = ("closes", "daemon", "noise", "odd")
#: What a trial does that says of every device, in each attempt, that it is broken.
BLAMES: Final = "blames"
#: What a trial says on a device that is broken, and on one that spoils whatever runs there; see break_down.
ECC: Final = "CUDA error: uncorrectable ECC error encountered"
SPOILED: Final = "CUDA error: initialization error"
#: The seat of a trial's worker, and the folder in which a file with an error's text says that a device of a seat is broken.
SEAT: Final = "MQTUNE_CHAOS_SEAT"
DEVICES: Final = "MQTUNE_CHAOS_DEVICES"
#: When it does so: some of its reports are on their way by then.
MISCHIEF_AT: Final = 3
#: A process that outlives every run, unless somebody ends it.
_DAEMON: Final = ("sleep", "1000")
#: More descriptors than a trial has.
_DESCRIPTORS: Final = 256
_STATE: Final = "state.json"


def term(config: dict[str, Any], step: int) -> int:
    """What step *step* adds to a trial's sum."""
    return (int(config["x"] * 1_000_000) * 31 + step * step * 7) % 100_003


def loss(config: dict[str, Any], step: int) -> float:
    return float((config["x"] - 0.3) ** 2 + 1 / step)


class Beats:
    """A file of a process for each attempt, or seat of one, that it runs, with a line for each time that it was seen alive."""

    def __init__(self) -> None:
        context = mqtune.get_context()
        # A file each, so that any number of processes can write at once.
        folder = Path(os.environ[BEATS]) / context.experiment
        folder.mkdir(exist_ok=True)
        seat = f"~{context.seat}" if context.seat else ""
        name = f"{context.trial}{seat}-{context.attempt}-{os.getpid()}"
        self._path = folder / name
        self.beat()

    def beat(self) -> None:
        # Opened anew each time, as the trial may close what it did not open.
        with self._path.open("a") as file:
            file.write(f"{time.monotonic():.3f}\n")


def row(
    config: dict[str, Any], state: dict[str, int], began: dict[str, int], trial: str, attempt: int
) -> dict[str, Any]:
    return {
        "loss": loss(config, state["step"]),
        **state,
        "x": config["x"],
        "trial": trial,
        "attempt": attempt,
        "from_step": began["step"],
        "from_total": began["total"],
        "from_pid": began["pid"],
    }


def breaks(config: dict[str, Any], step: int, attempt: int) -> bool:
    """Whether user code fails here: in some trials, in their first attempt."""
    return attempt == 1 and step == config["breaks_at"]


def break_down(config: dict[str, Any]) -> None:
    """Fail on a device that is broken, or by blaming any device."""
    broken = Path(os.environ[DEVICES], f"{os.environ[SEAT]}-{os.environ.get('CUDA_VISIBLE_DEVICES', '')}")
    if broken.exists():
        raise RuntimeError(broken.read_text())
    if config["mischief"] == BLAMES:
        raise RuntimeError(ECC)


def misbehave(config: dict[str, Any], step: int, attempt: int, metrics: dict[str, Any]) -> None:
    """Do what the config says, once: close every file, write into mqtune's pipes, leave a process, report what is no number."""
    if attempt != 1 or step != MISCHIEF_AT:
        return
    match config["mischief"]:
        case "closes":
            os.closerange(3, _DESCRIPTORS)
        case "daemon":
            subprocess.Popen(_DAEMON, start_new_session=True)
        case "noise":
            for fd in range(3, _DESCRIPTORS):
                with contextlib.suppress(OSError):
                    if stat.S_ISFIFO(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_WRONLY:
                        os.write(fd, b"\xff" * 64)
        case "odd":
            metrics["loss"] = "not a number"


def counts(config: dict[str, Any]) -> None:
    """Count up, in step with the trial's other seats; save a dict or a folder with every so many reports."""
    with Others() as others:
        _count(config, others)


def _count(config: dict[str, Any], others: Others) -> None:
    context = mqtune.get_context()
    checkpoint = mqtune.get_checkpoint()
    began = START if checkpoint is None else _state_of(checkpoint)
    beats = Beats()
    for step, total in _counted(config, began):
        others.wait()
        beats.beat()
        break_down(config)
        if breaks(config, step, context.attempt):
            raise ValueError(f"step {step} breaks")
        state = {"step": step, "total": total, "pid": os.getpid()}
        saved = None
        if step % config["every"] == 0:
            saved = state if config["saves"] == "dict" else _folder(context.folder, state)
        metrics = row(config, state, began, context.trial, context.attempt)
        misbehave(config, step, context.attempt, metrics)
        mqtune.report(metrics, checkpoint=saved)
        beats.beat()


def _counted(config: dict[str, Any], began: dict[str, int]) -> Iterator[tuple[int, int]]:
    total = began["total"]
    for step in range(began["step"] + 1, config["epochs"] + 1):
        time.sleep(config["epoch_s"])
        total += term(config, step)
        yield step, total


def _folder(parent: Path, state: dict[str, int]) -> Path:
    folder = parent / "mine"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _STATE).write_text(json.dumps(state))
    (folder / "weights.bin").write_bytes(bytes([state["step"] % 256]) * 2000)
    return folder


def _state_of(checkpoint: Any) -> dict[str, int]:
    return dict(checkpoint.data if checkpoint.is_dict else json.loads((checkpoint.path / _STATE).read_text()))


class Counts(mqtune.Trainable):
    """The same as a class, which is asked to save when it is paused."""

    others: Others | None = None

    def setup(self, config: dict[str, Any]) -> None:
        self.checkpoint_every = config["every"]
        self._begin()

    def reset_config(self, config: dict[str, Any]) -> bool:
        self._begin()
        return True

    def _begin(self) -> None:
        self.cleanup()
        self.state = self.began = dict(START)
        self.beats: Beats | None = None

    def cleanup(self) -> None:
        if self.others is not None:
            self.others.close()
        self.others = None

    def step(self) -> dict[str, Any]:
        attempt = mqtune.get_context().attempt
        if self.beats is None:
            self.beats = Beats()
        if self.others is None:
            self.others = Others()
        time.sleep(self.config["epoch_s"])
        self.others.wait()
        step = self.state["step"] + 1
        self.beats.beat()
        break_down(self.config)
        if breaks(self.config, step, attempt):
            raise ValueError(f"step {step} breaks")
        self.state = {"step": step, "total": self.state["total"] + term(self.config, step), "pid": os.getpid()}
        metrics = row(self.config, self.state, self.began, self.trial_id, attempt)
        misbehave(self.config, step, attempt, metrics)
        return {**metrics, "done": step >= self.config["epochs"]}

    def save_checkpoint(self, folder: Path) -> dict[str, Any] | None:
        if self.config["saves"] == "dict":
            return self.state
        (folder / _STATE).write_text(json.dumps(self.state))
        return None

    def load_checkpoint(self, checkpoint: mqtune.Checkpoint) -> None:
        data = checkpoint.data if checkpoint.is_dict else json.loads((checkpoint.path / _STATE).read_text())
        self.state = self.began = dict(data)


def last_beats(folder: Path, experiment: str) -> dict[tuple[str, int, int], tuple[float, float]]:
    """When each process of each attempt of an experiment was first and last seen alive, by (trial or name of a further seat, attempt, pid)."""
    found: dict[tuple[str, int, int], tuple[float, float]] = {}
    if not (folder / experiment).exists():
        return found
    for path in (folder / experiment).iterdir():
        trial, attempt, pid = path.name.rsplit("-", 2)
        with contextlib.suppress(IndexError):
            times = [float(line) for line in path.read_text().splitlines()]
            found[trial, int(attempt), int(pid)] = times[0], times[-1]
    return found
