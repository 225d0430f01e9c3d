"""The session of a script, which reports over a channel to the trial's process.

The script sends a request, a map with ``do``, and waits for the answer, a map with ``is``. The answer comes when the
request has been carried out, so a lockstep report waits for its decision:

- ``report`` with ``metrics`` and ``checkpoint``; ``save`` with ``checkpoint``.
- ``save_wanted``, whose answer has ``save_wanted``. ``action``, whose answer has ``action``.
- ``fetch``, whose answer has ``checkpoint``, a map or None. ``draft``, whose answer has ``folder``.

``is`` is "done", "error" (with ``type`` and ``text``), or "told": the trial has the order ``action`` to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from mqtune.core import errors
from mqtune.core.codec import decode_value, pack_metrics
from mqtune.core.errors import ReportingClosed
from mqtune.core.trial import CheckpointId, Metrics
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.children import refuse
from mqtune.trainable.process.output import flush
from mqtune.trainable.process.protocol import PIPE_CLOSED, RELAY, Message, StopOrder
from mqtune.trainable.process.saver import check_savable
from mqtune.trainable.process.session import RAISED_AT_MOST, Context, StopTrial, explain_ignored_order, file_of

if TYPE_CHECKING:
    from mqtune.checkpoints import Checkpoint
    from mqtune.trainable.process.saver import Savable

#: Environment variables of a script: trial id, attempt number, experiment name, folder, seat, number of seats, and
#: address of seat 0.
CONTEXT: Final = (
    "MQTUNE_TRIAL",
    "MQTUNE_ATTEMPT",
    "MQTUNE_EXPERIMENT",
    "MQTUNE_TRIAL_FOLDER",
    "MQTUNE_SEAT",
    "MQTUNE_SEATS",
    "MQTUNE_ADDRESS",
)


def address_of(fd: int) -> str:
    """Return the address of a channel, for a variable in the environment of a script.

    It names the descriptor and identifies the file: child processes of the script have the variable, too, but may have
    another file under that number.
    """
    return f"{fd}:{file_of(fd)[0]}"


def join() -> RelayedSession:
    """Return a session for the trial that started this script.

    Raises:
        RuntimeError: this process is a child of the script.
    """
    address = os.environ[RELAY]
    fd = int(address.partition(":")[0])
    if address_of(fd) != address:
        refuse("report", "trial's script")
    os.set_inheritable(fd, False)
    return RelayedSession(Channel.of_fd(fd))


class RelayedSession:
    """The session of a script, with the methods of ``Session``. Thread-safe.

    If it is made in the main thread, SIGTERM raises StopTrial there, unless the script has its own handler.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._address = address_of(channel.fileno())
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._main = threading.main_thread().ident
        self._busy = False
        self._signalled = False
        #: Whether StopTrial was raised. Then SIGTERM does not raise it again, in the middle of cleanup.
        self._was_told = False
        #: How often the main thread has raised StopTrial, and the last one's order.
        self._raised = 0
        self._order: StopOrder = ""
        self._checkpoint: Checkpoint | None = None
        self.next_checkpoint: Path | None = None
        trial, attempt, experiment, folder, seat, seats, address = (os.environ[name] for name in CONTEXT)
        self.context = Context(trial, int(attempt), experiment, Path(folder), int(seat), int(seats), address)
        if threading.get_ident() == self._main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_terminate)
            sys.excepthook = _print_unless_stopped

    def report(self, metrics: Metrics, checkpoint: Savable | None = None) -> None:
        """Send one report, as ``mqtune.report`` does."""
        if self._raised >= RAISED_AT_MOST and threading.get_ident() == self._main and os.getpid() == self._pid:
            self._end_deaf_process()
        # Checked here too, so that the traceback of an invalid value has the script's line.
        _, plain = decode_value(pack_metrics(0.0, metrics))
        if checkpoint is None and self.next_checkpoint is not None:
            checkpoint, self.next_checkpoint = self.next_checkpoint, None
        portable = None if checkpoint is None else _portable(checkpoint)
        self._send_request({"do": "report", "metrics": plain, "checkpoint": portable})

    def save(self, checkpoint: Savable) -> None:
        """Save a checkpoint without a report. This works after an order to end, too."""
        self._send_request({"do": "save", "checkpoint": _portable(checkpoint)})

    def is_save_wanted(self) -> bool:
        """Return whether a checkpoint was requested and none has been saved since."""
        return bool(self._send_request({"do": "save_wanted"})["save_wanted"])

    def get_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint that this attempt starts from, as ``mqtune.get_checkpoint`` does."""
        checkpoint = self._send_request({"do": "fetch"})["checkpoint"]
        if checkpoint is not None and self._checkpoint is None:
            from mqtune.checkpoints import Checkpoint  # noqa: PLC0415

            path = None if checkpoint["path"] is None else Path(checkpoint["path"])
            self._checkpoint = Checkpoint(
                id=CheckpointId(checkpoint["id"]), path=path, data=checkpoint["data"], counters=checkpoint["counters"]
            )
        return self._checkpoint

    def draft(self) -> Path:
        """Return a new empty folder to write a checkpoint into."""
        return Path(self._send_request({"do": "draft"})["folder"])

    def _send_request(self, question: Mapping[str, object]) -> Message:
        if os.getpid() != self._pid:
            refuse("report", "trial's script")
        is_main = threading.get_ident() == self._main
        # The signal handler sends a request, too, and must not do so during another one.
        if is_main:
            self._busy = True
        try:
            with self._lock:
                if address_of(self._channel.fileno()) != self._address:
                    raise ReportingClosed(PIPE_CLOSED)
                self._channel.send(question)
                received = self._channel.receive()
        finally:
            if is_main:
                self._busy = False
        answer: Message = {"is": "told", "action": "stop"} if received is None else received[0]
        if answer["is"] == "error":
            raise _error_of(answer["type"], answer["text"])
        if answer["is"] == "told":
            self._was_told = True
            raise self._record_stop(answer["action"])
        if is_main:
            self._handle_signal()
        return answer

    def _on_terminate(self, *_: object) -> None:
        self._signalled = True
        if not self._busy:
            self._handle_signal()

    def _handle_signal(self) -> None:
        if self._signalled and not self._was_told:
            self._was_told = True
            raise self._record_stop(self._send_request({"do": "action"})["action"])

    def _record_stop(self, order: StopOrder) -> StopTrial:
        self._order = order
        self._raised += threading.get_ident() == self._main
        return StopTrial(order)

    def _end_deaf_process(self) -> None:
        """Print that this process has ignored its order to end, and send it SIGTERM.

        A handler of the script gets the signal, if it has one.
        """
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{explain_ignored_order(self._order)}\n")
        flush()
        if signal.getsignal(signal.SIGTERM) == self._on_terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(self._pid, signal.SIGTERM)


def _portable(checkpoint: Savable) -> dict[str, object]:
    """Return a checkpoint as plain values for a message.

    A path is absolute, as the trial's process may have another working directory.
    """
    content = check_savable(checkpoint)
    if isinstance(content, dict):
        from mqtune.checkpoints import encode_dict  # noqa: PLC0415

        # Checked here too, so that the traceback of an invalid value has the script's line.
        encode_dict(content, {})
        return {"data": content, "path": None}
    return {"data": None, "path": str(content.absolute())}


def _error_of(kind: str, text: str) -> Exception:
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, errors.MqtuneError):
        return known(text)
    return TypeError(text) if kind == "TypeError" else RuntimeError(text)


def _print_unless_stopped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, StopTrial):
        sys.__excepthook__(kind, error, trace)
