"""The process beside a script, which runs the trials of one script after the other: each is a process of its own, a child of this one.

It stays after a trial that has completed, unless the zygote sees that the script has left processes; what it says to the zygote is the
same as in ``mqtune.trainable.process.reuse``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, cast

from mqtune.core.trial import AttemptEnd
from mqtune.trainable import reporting
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.output import take_over_output
from mqtune.trainable.process.protocol import STOP_SIGNAL, BecomeScript, Ending, StartMessage
from mqtune.trainable.process.runner import run_attempt
from mqtune.trainable.process.session import Session
from mqtune.trainable.script import ScriptRun
from mqtune.trainable.spec import Loaded


def run_scripts(channel: Channel, load: Callable[[], Loaded], message: StartMessage, pipes: Sequence[int]) -> NoReturn:
    """Run a trial, and each further one that the zygote gives to this process while it may stay, and exit.

    Raises:
        BecomeScript: in a fork of this process, which is to become the script.
    """
    # A trial may have changed to a folder of its own.
    home = os.open(".", os.O_RDONLY)
    code = 1
    try:
        while True:
            code, is_completed = _run_one(load, message, pipes)
            for pipe in pipes:
                os.close(pipe)
            os.fchdir(home)
            if not (message["reuse"] and is_completed and _may_stay(channel)):
                break
            received = channel.receive()
            if received is None:
                break
            signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL})
            channel.send({"is": "taken"})
            message, pipes = cast("StartMessage", received[0]), received[1]
    except BecomeScript:
        raise
    except BaseException:  # noqa: BLE001 - it has reported what it could
        code = 1
    os._exit(code)


def _run_one(load: Callable[[], Loaded], message: StartMessage, pipes: Sequence[int]) -> tuple[int, bool]:
    """Run a trial, and return the code to exit with and whether it has completed; the stop signal is blocked until its script is."""
    take_over_output(message["stdout"], message["stderr"])
    current = reporting.current = Session(message, pipes)
    signal.signal(STOP_SIGNAL, current.tell)
    if current.was_told():
        # Its signal came before there was a handler.
        os.kill(os.getpid(), STOP_SIGNAL)
    is_completed = False

    def run(script: Loaded, session: Session) -> Ending:
        nonlocal is_completed
        assert isinstance(script, Path)  # noqa: S101 - nothing else has its trials run here
        ending = ScriptRun(script, session).run()
        is_completed = ending.end is AttemptEnd.COMPLETED
        return ending

    code = run_attempt(load, current, run)
    return code, is_completed and code == 0


def _may_stay(channel: Channel) -> bool:
    """Whether the script has left no processes, as the zygote sees it."""
    channel.send({"is": "done", "left": "", "is_over": True})
    received = channel.receive()
    return received is not None and not received[0]["left"]
