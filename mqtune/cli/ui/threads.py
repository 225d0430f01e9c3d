"""Threads for requests that may block on a server or a disk."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

P = ParamSpec("P")
R = TypeVar("R")


class RequestThreads:
    """Runs functions in daemon threads, at most a few for each experiment.

    So a hanging server or disk blocks neither requests for other experiments nor the end of the process. Only one event
    loop may use an instance.

    Args:
        at_once: the most threads for one experiment.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, experiment: str, function: Callable[P, R], *args: P.args, **options: P.kwargs) -> R:
        """Call a function in a thread of the experiment. Return its result, or raise its error."""
        turns = self._turns.get(experiment)
        if turns is None:
            turns = self._turns[experiment] = asyncio.Semaphore(self._at_once)
        await turns.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[R] = loop.create_future()

        def end(result: R | None, error: BaseException | None) -> None:
            # Not earlier: the thread of an abandoned request may still hang.
            turns.release()
            if ended.cancelled():
                return
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, failure = None, None
            try:
                result = function(*args, **options)
            except BaseException as error:  # noqa: BLE001 - the request raises it
                failure = error
            # The loop may have been closed meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(end, result, failure)

        threading.Thread(target=work, name=f"mqtune-ui-request-{experiment}", daemon=True).start()
        return await ended
