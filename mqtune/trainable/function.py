"""Runs a function as a trainable: calls it by its signature, and reports its results."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, cast

from mqtune.core.codec import decode_value, encode_metric, encode_value
from mqtune.core.trial import Metrics
from mqtune.trainable.process.saver import make_folder, remove_folder
from mqtune.trainable.process.session import Session, StopTrial
from mqtune.trainable.reporting import here
from mqtune.trainable.spec import Function, extras_of

_DONE: Final = "done"
#: The file for a dict checkpoint, if the function takes a checkpoint folder.
_DICT_FILE: Final = "checkpoint.msgpack"


#: The generator that a function with ``yield`` returns.
_Reports = Generator[object, None, object]


class _Done(BaseException):
    """Raised when a function reports ``done``. ``except Exception`` doesn't catch it."""


class Reporter:
    """Reports metrics for a function ``f(config, reporter)``, as ``mqtune.report`` does.

    Attributes:
        trial_id: the trial's id.
        trial_name: the experiment's name and the trial's id.
        logdir: the attempt's own folder on the worker; see ``mqtune.get_context``.
    """

    def __init__(self, current: Session) -> None:
        self._session = current
        self.trial_id = current.message["trial"]
        self.trial_name = f"{current.message['experiment']}_{self.trial_id}"

    @property
    def logdir(self) -> str:
        """The attempt's own folder on the worker; see ``mqtune.get_context``."""
        return str(self._session.ensure_folder())

    def __call__(self, **metrics: object) -> None:
        """Report metrics. ``done=True`` is not reported and ends the trial here, as COMPLETED."""
        done = metrics.pop(_DONE, False)
        if metrics:
            self._session.report(metrics)
        if done:
            raise _Done


@contextlib.contextmanager
def checkpoint_dir(step: int | None = None) -> Iterator[Path]:  # noqa: ARG001 - in older code it names the folder
    """Yield a new empty folder, which is the next report's checkpoint after the ``with`` block.

    If no report follows before the function returns, the folder is saved without one. It is discarded if the block
    raises, or if another checkpoint folder is made before the next report. Outside a trial it is deleted after the
    block.

    Args:
        step: ignored; older code passes it. A checkpoint has the counters of its report.
    """
    current = here()
    if current is None:
        # Imported only here: it loads much that no trial needs.
        import tempfile  # noqa: PLC0415

        with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
            yield Path(folder)
        return
    draft = current.draft()
    try:
        yield draft
    except BaseException:
        remove_folder(draft)
        raise
    if current.next_checkpoint is not None:
        remove_folder(current.next_checkpoint)
    current.next_checkpoint = draft


def run_function(function: Function, current: Session) -> None:
    """Call a function with the config, and with a reporter or checkpoint folder if it accepts them.

    Yielded values are reported. The returned value is reported unless the last report already has it. StopIteration
    completes the trial.
    """
    extras: dict[str, object] = {}
    for name in extras_of(function):
        extras[name] = Reporter(current) if name == "reporter" else _start_folder(current)
    try:
        returned = function(current.message["config"], **extras)
        if inspect.isgenerator(returned):
            returned = _report_yielded(cast("_Reports", returned), function.__name__, current)
    except (StopIteration, _Done):
        returned = None
    last = _as_metrics(returned, f"{function.__name__} returned", current)
    if last and not _has_all(current.last_metrics, last):
        current.report(last)
    if current.next_checkpoint is not None:
        draft, current.next_checkpoint = current.next_checkpoint, None
        current.save(draft)


def _start_folder(current: Session) -> str | None:
    """Return the local folder of the trial's initial checkpoint, or None without a checkpoint.

    A dict checkpoint is written into a file there.
    """
    checkpoint = current.get_checkpoint()
    if checkpoint is None:
        return None
    if not checkpoint.is_dict:
        return str(Path(checkpoint.path))
    folder = make_folder(current.ensure_scratch() / "checkpoint")
    (folder / _DICT_FILE).write_bytes(encode_value(checkpoint.data))
    return str(folder)


def _report_yielded(generator: _Reports, name: str, current: Session) -> object:
    """Report each value that a generator yields, and return its result.

    An error of a report is raised at the yield, so the function's ``finally`` blocks run and the traceback has its
    line.
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


def _as_metrics(value: object, source: str, current: Session) -> Metrics:
    """Convert a returned or yielded value to metrics. None becomes an empty dict.

    *source* begins the error's text.
    """
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    metric = current.message["options"]["metric"]
    with contextlib.suppress(TypeError):
        number = decode_value(encode_metric(value))
        if isinstance(number, int | float) and not isinstance(number, bool) and isinstance(metric, str):
            return {metric: number}
    which = "a number, a dict of metrics" if isinstance(metric, str) else f"a dict of the metrics {metric}"
    raise TypeError(f"{source} {value!r}, which is {type(value).__name__}; give {which}, or nothing")


def _has_all(reported: Metrics, metrics: Metrics) -> bool:
    return all(name in reported and _is_same_value(reported[name], value) for name, value in metrics.items())


def _is_same_value(reported: object, value: object) -> bool:
    # NaN is not equal to itself, but is the same value. Comparing arrays gives an array.
    try:
        return encode_value(reported) == encode_metric(value) or bool(reported == value)
    except (TypeError, ValueError):
        return False
