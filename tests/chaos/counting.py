"""Trainables whose every report can be checked: a sum that only whoever went on from the right checkpoint has."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import Any, Final

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
#: More descriptors than a trial has.
_DESCRIPTORS: Final = 256
_STATE: Final = "state.json"
#: How long a seat waits for another one that is late: longer than anything that brings it, or ends both.
_SEATS_WAIT_S: Final = 60.0


def term(config: dict[str, Any], step: int) -> int:
    """What step *step* adds to a trial's sum."""
    return (int(config["x"] * 1_000_000) * 31 + step * step * 7) % 100_003


class Beats:
    """A file of a process for each attempt, or seat of one, that it runs, with a line for each time that it was seen alive."""

    def __init__(self) -> None:
        context = mqtune.get_context()
        # A file each, so that any number of processes can write at once.
        folder = Path(os.environ[BEATS]) / context.experiment
        folder.mkdir(exist_ok=True)
        seat = f"~{context.seat}" if context.seat else ""
        self._path = folder / f"{context.trial}{seat}-{context.attempt}-{os.getpid()}"
        self.beat()

    def beat(self) -> None:
        # Opened anew each time, as the trial may close what it did not open.
        with self._path.open("a") as file:
            file.write(f"{time.monotonic():.3f}\n")


def row(
    config: dict[str, Any], state: dict[str, int], began: dict[str, int], trial: str, attempt: int
) -> dict[str, Any]:
    own = {"loss": float((config["x"] - 0.3) ** 2 + 1 / state["step"]), "x": config["x"], "trial": trial}
    return {**own, "attempt": attempt, **state, **{f"from_{name}": value for name, value in began.items()}}


class Others(contextlib.AbstractContextManager):
    """Connections between seat 0 and each other seat of a trial, which count in step: none goes on without the others."""

    def __init__(self) -> None:
        self._peers: list[socket.socket] = []
        context = mqtune.get_context()
        self._mine = f"{context.experiment}/{context.trial}/{context.attempt}\n".encode()
        if context.seats > 1:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            deadline = time.monotonic() + _SEATS_WAIT_S
            if context.seat:
                self._peers.append(self._connected(host, port, deadline))
            else:
                self._accept(port, context.seats - 1, deadline)

    def _accept(self, port: int, number: int, deadline: float) -> None:
        with socket.create_server(("", port)) as server:
            while len(self._peers) < number:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                peer, _ = server.accept()
                peer.settimeout(_SEATS_WAIT_S)
                # A seat of an attempt that is over may have found whoever has its port by now.
                if _line(peer) == self._mine:
                    self._peers.append(peer)
                else:
                    peer.close()

    def _connected(self, host: str, port: int, deadline: float) -> socket.socket:
        while True:
            try:
                peer = socket.create_connection((host, port), timeout=_SEATS_WAIT_S)
                peer.sendall(self._mine)
                return peer
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def wait(self) -> None:
        """Return once all seats have come to their next step."""
        for peer in self._peers:
            peer.sendall(b".")
        for peer in self._peers:
            if not peer.recv(1):
                raise ConnectionError("another seat is gone")

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        self._peers = []

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(peer: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(OSError):
        while not found.endswith(b"\n") and (more := peer.recv(1)):
            found += more
    return found


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
            subprocess.Popen(("sleep", "1000"), start_new_session=True)
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
    beats, total = Beats(), began["total"]
    for step in range(began["step"] + 1, config["epochs"] + 1):
        time.sleep(config["epoch_s"])
        total += term(config, step)
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
        self.state = self.began = _state_of(checkpoint)


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
