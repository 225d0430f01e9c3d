"""Runs a tuner in a background thread, for programs that have a loop of their own."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import Report, Trial, TrialId
from mqtune.tuner import Tuner

T = TypeVar("T")

#: Longest wait of one step for new events, in seconds. A call from another thread waits at most that long. An idle
#: thread takes a hundredth of a core.
_STEP_S: Final = 0.02
#: How long ``close`` waits for the thread, in seconds. It is enough for a local worker and server to end. An
#: unavailable Redis would take much longer.
_CLOSE_S: Final = 30.0


class BackgroundTuner:
    """Runs the loop of a tuner without a space in a thread.

    So trials run while the caller is busy. Any thread may call each method. When a trial has ended, ``reports`` has all
    its reports. An error in the loop ends the thread: ``problem`` has it, and later calls of ``do`` raise it. The tuner
    is closed when the process exits.

    Args:
        open_tuner: makes the tuner. The thread calls it.

    Raises:
        Exception: the error of *open_tuner*, or of ``Tuner.run`` when it connects.
    """

    def __init__(self, open_tuner: Callable[[], Tuner]) -> None:
        #: The error that has ended the thread.
        self.problem: BaseException | None = None
        self._reports: dict[TrialId, list[Report]] = {}
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        #: Held while a call is queued, and while the thread ends. No call is queued after that.
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(open_tuner,), name="mqtune-tuner", daemon=True)
        self._thread.start()
        self._tuner = self.do(lambda tuner: tuner)
        atexit.register(self.close)

    def do(self, action: Callable[[Tuner], T]) -> T:
        """Call *action* with the tuner in the thread, between two steps, and return the result.

        Raises:
            Exception: the error of *action*, or the error that ended the thread.
        """
        call = _Call(action)
        with self._ending:
            if self.problem is not None:
                raise self.problem
            self._calls.put(call)
        answer: T = call.answer.result()
        return answer

    def find(self, key: str) -> Trial | None:
        """Return the trial that was added with this key, or None, without waiting for the thread."""
        return self._tuner.find(key)

    def reports(self, trial: Trial) -> list[Report]:
        """Return all valid reports of a trial so far, oldest first, without waiting for the thread.

        They include reports from before this driver began.
        """
        return list(self._reports.get(trial.id, ()))

    def close(self) -> None:
        """Close the tuner and end the thread. Trials on a broker's workers continue."""
        atexit.unregister(self.close)
        self._calls.put(None)
        self._thread.join(_CLOSE_S)

    def _run(self, open_tuner: Callable[[], Tuner]) -> None:
        problem: BaseException = ConfigurationError("this BackgroundTuner is closed; make another one")
        try:
            with contextlib.closing(open_tuner()) as tuner:
                tuner.listen(self._store_report)
                while self._carry_out_calls(tuner):
                    self._step(tuner)
        except BaseException as error:  # noqa: BLE001 - its callers get it
            problem = error
        with self._ending:
            self.problem = problem
        while not self._calls.empty():
            if (call := self._calls.get()) is not None:
                call.answer.set_exception(problem)

    def _carry_out_calls(self, tuner: Tuner) -> bool:
        """Carry out all queued calls. Return False if the tuner was asked to close."""
        while not self._calls.empty():
            if (call := self._calls.get()) is None:
                return False
            call.carry_out(tuner)
        return True

    def _step(self, tuner: Tuner) -> None:
        if tuner.is_finished:
            # A call may add a trial, and then there are steps again.
            time.sleep(_STEP_S)
        else:
            tuner.step(_STEP_S)

    def _store_report(self, report: Report) -> None:
        self._reports.setdefault(report.trial, []).append(report)


class _Call:
    """A call from another thread, which waits for the answer."""

    def __init__(self, action: Callable[[Tuner], object]) -> None:
        self.answer: Future[Any] = Future()
        self._action = action

    def carry_out(self, tuner: Tuner) -> None:
        try:
            self.answer.set_result(self._action(tuner))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self.answer.set_exception(error)
