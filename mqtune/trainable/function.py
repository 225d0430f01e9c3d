"""Runs a trainable that is a function: calls it as its signature asks, and reports what it returns or yields."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final, cast

from mqtune.core.codec import decode_value, encode_value
from mqtune.trainable.process.saver import make_folder, remove_folder
from mqtune.trainable.process.session import Session, StopTrial
from mqtune.trainable.reporting import here
from mqtune.trainable.spec import extras_of

__all__ = ["Reporter", "checkpoint_dir", "run_function"]

_DONE: Final = "done"
#: The file in which a function that takes a folder finds a checkpoint that is a dict.
_DICT_FILE: Final = "checkpoint.msgpack"


class _Done(BaseException):
    """The function has said that it is done; a BaseException, so that ``except Exception`` doesn't swallow it."""


class Reporter:
    """What a function ``f(config, reporter)`` reports with; ``mqtune.report`` does the same for any function.

    Attributes:
        trial_id: the trial's id.
        trial_name: the experiment's name and the trial's id.
        logdir: the attempt's own folder on the worker; see ``mqtune.get_context``.
    """

    def __init__(self, current: Session) -> None:
        self._session = current
        self.trial_id: str = current.trial
        self.trial_name = f"{current.experiment}_{current.trial}"

    @property
    def logdir(self) -> str:
        """The attempt's own folder on the worker; see ``mqtune.get_context``."""
        return str(self._session.folder)

    def __call__(self, **metrics: Any) -> None:
        """Report metrics; ``done`` is none of them: true ends the trial here, as COMPLETED.

        Raises:
            TypeError: a value can't be sent.
            StopTrial: the trial should stop.
        """
        done = metrics.pop(_DONE, False)
        if metrics:
            self._session.report(metrics)
        if done:
            raise _Done


@contextlib.contextmanager
def checkpoint_dir(step: int | None = None) -> Iterator[str]:  # noqa: ARG001 - in older code it names the folder
    """Give a new empty folder; what it holds at the end of the ``with`` block is the checkpoint of the next report.

    If no report follows and the function returns, it is saved all the same. If the block raises, or another checkpoint
    is made before the next report, it is dropped. Outside a trial the folder is removed again.

    Args:
        step: how far the trial is, as older code says; a checkpoint has its counters from its report.
    """
    current = here()
    if current is None:
        # It brings much with it that no trial needs.
        import tempfile  # noqa: PLC0415

        with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
            yield folder
        return
    draft = current.draft()
    try:
        yield str(draft)
    except BaseException:
        remove_folder(draft)
        raise
    if current.next_checkpoint is not None:
        remove_folder(current.next_checkpoint)
    current.next_checkpoint = draft


def run_function(function: Callable[..., Any], config: dict[str, Any], current: Session) -> None:
    """Call a function with the config, and a reporter or the folder of a checkpoint if it takes them.

    What it yields is reported, and what it returns too, unless the last report has it already. StopIteration ends it
    cleanly.

    Raises:
        TypeError: it returned or yielded something that is no report.
        BaseException: whatever it raises.
    """
    extras: dict[str, Any] = {}
    for name in extras_of(function):
        extras[name] = Reporter(current) if name == "reporter" else _start_folder(current)
    try:
        returned = function(config, **extras)
        if inspect.isgenerator(returned):
            returned = _report_yielded(cast(Generator[Any, None, Any], returned), function.__name__, current)
    except (StopIteration, _Done):
        returned = None
    last = _as_metrics(returned, f"{function.__name__} returned", current)
    if last and not _has_all(current.last_metrics, last):
        current.report(last)
    if current.next_checkpoint is not None:
        draft, current.next_checkpoint = current.next_checkpoint, None
        current.save(draft)


def _start_folder(current: Session) -> str | None:
    """Return the local folder of the checkpoint that the trial starts from, or None; a dict is a file in one."""
    checkpoint = current.get_checkpoint()
    if checkpoint is None:
        return None
    if not checkpoint.is_dict:
        return str(Path(checkpoint.path))
    folder = make_folder(current.scratch / "checkpoint")
    (folder / _DICT_FILE).write_bytes(encode_value(checkpoint.data))
    return str(folder)


def _report_yielded(generator: Generator[Any, None, Any], name: str, current: Session) -> Any:
    """Report what a generator yields, and return what it returns.

    What a report raises is raised at the yield, so that the function's ``finally`` blocks run and its line is named.
    """
    try:
        value = next(generator)
        while True:
            try:
                current.report(_as_metrics(value, f"{name} yielded", current))
            except (Exception, StopTrial) as error:  # noqa: BLE001 - the function may handle it
                value = generator.throw(error)
            else:
                value = next(generator)
    except StopIteration as end:
        return end.value
    finally:
        generator.close()


def _as_metrics(value: object, what: str, current: Session) -> dict[str, Any]:
    """Return what a function returned or yielded as metrics; None is no metrics at all."""
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    with contextlib.suppress(TypeError):
        number = decode_value(encode_value(value))
        if isinstance(number, int | float) and not isinstance(number, bool):
            return {str(current.options["metric"]): number}
    raise TypeError(f"{what} {value!r}, which is {type(value).__name__}; give a number, a dict of metrics, or nothing")


def _has_all(reported: dict[str, Any], metrics: dict[str, Any]) -> bool:
    """Whether a report has all of the metrics already."""
    return all(name in reported and _same(reported[name], value) for name, value in metrics.items())


def _same(reported: object, value: object) -> bool:
    # NaN is not equal to itself, but is the same report; an array has no plain equality.
    try:
        return encode_value(reported) == encode_value(value) or bool(reported == value)
    except (TypeError, ValueError):
        return False
