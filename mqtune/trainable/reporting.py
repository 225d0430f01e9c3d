"""Functions that a running trainable calls, such as ``report``. They work outside a trial, too."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from mqtune.core.codec import pack_metrics
from mqtune.core.trial import Metrics
from mqtune.trainable.process.children import NOTE, refuse
from mqtune.trainable.process.protocol import RELAY
from mqtune.trainable.process.saver import check_savable
from mqtune.trainable.process.session import Context, Session

if TYPE_CHECKING:
    from mqtune.checkpoints import Checkpoint
    from mqtune.trainable.process.relay import RelayedSession
    from mqtune.trainable.process.saver import Savable

#: Session of this process, if a trial or its script runs here.
current: Session | RelayedSession | None = None


def here() -> Session | RelayedSession | None:
    """Return the session of this process, or None outside a trial.

    In a script, the first call connects it to its trial.
    """
    global current  # noqa: PLW0603 - a process is one trial or none
    if current is None and RELAY in os.environ:
        from mqtune.trainable.process.relay import join  # noqa: PLC0415

        current = join()
    return current


def report(metrics: Metrics, checkpoint: Savable | None = None) -> None:
    """Report metrics from a trainable, and optionally a checkpoint.

    In a trial the report gets the next sequence number and a time, and reaches the driver in order and exactly once.
    The call returns when the report is in the pipe to the worker, and waits while that is full. With
    ``sync="lockstep"`` it returns when the scheduler has decided on the report, or raises StopTrial if that ends the
    trial. Arrays, tensors and series without a dimension become numbers, and one-dimensional ones become lists. Masked
    values become NaN. NaN and infinity are allowed. Any thread of the trial's own process may call it, but no child
    process of it.

    Outside a trial it logs the metrics, and saves nothing.

    A checkpoint is complete before the report that names it is sent.

    In a trial with several seats only seat 0 reports and saves. In another seat the arguments are checked, the metrics
    below are counted, and StopTrial is raised. Nothing is sent, saved or waited for; the seat's stderr notes this once.

    Each report of a trial has these metrics too, unless the caller reports them:

    - ``training_iteration``: number of the trial's reports.
    - ``time_this_iter_s``: seconds since the last call of ``report`` returned, or since the attempt began.
    - ``time_total_s``: the sum of these.

    The first and the last continue from the trial's initial checkpoint after ``get_checkpoint`` has fetched it.
    Otherwise they begin at 0.

    Args:
        metrics: names and values, including the metric that the experiment optimises.
        checkpoint: the trial's state: a dict of at most 1 MB, kept in Redis; the path of a folder, which is copied to
            the experiment's store; or a ``Checkpoint``.

    Raises:
        RuntimeError: this is a child process of the trial.
        ReportInvalid: a value can't be sent, or a name is not a string. Nothing was sent, and the message names it. It
            is a TypeError.
        ReportTooLarge: it has more than 1 MiB, packed. Nothing was sent, and the message names the largest value.
        ConfigurationError: the checkpoint can't be saved as it is, or the experiment has no store for it.
        StoreUnavailable: the store can't be reached or written.
        StopTrial: the trial should end.
    """
    current = here()
    if current is not None:
        current.report(metrics, checkpoint)
        return
    if NOTE in os.environ:
        refuse("report")
    pack_metrics(0.0, metrics)
    if checkpoint is not None:
        _check_checkpoint(checkpoint)
    logger = logging.getLogger("mqtune.report")
    if not logger.hasHandlers():
        # Show the metrics in a plain script without logging.
        logger.addHandler(logging.StreamHandler(sys.stderr))
        logger.setLevel(logging.INFO)
    logger.info("%s", "  ".join(f"{name}={_short_text(value)}" for name, value in metrics.items()))


def ask(question: Metrics) -> object:
    """Report a question to the driver, and return the answer given to ``Tuner.answer``.

    It waits for the answer. If the driver ends meanwhile, the next driver gets the question, so a question may arrive
    twice. In a trial with several seats only seat 0 may ask.

    Args:
        question: metrics, as of any report.

    Raises:
        RuntimeError: this is outside a trial, in a script, or not the trial's seat 0.
        ReportInvalid, ReportTooLarge, StopTrial: as ``report``.
    """
    current = here()
    if not isinstance(current, Session):
        raise RuntimeError(  # noqa: TRY004 - it is no wrong type of anything given
            "ask: only a trial of a function or class can ask its driver, from its own process"
        )
    return current.ask(question)


def get_checkpoint() -> Checkpoint | None:
    """Return the trial's initial checkpoint. Return None without one, or outside a trial.

    A folder is fetched and verified at the first call. The copy belongs to the trial, and is deleted after the attempt.

    Raises:
        CheckpointGone: it no longer exists.
        CheckpointBroken: its content differs from the saved one.
        StoreUnavailable: the store can't be reached.
    """
    current = here()
    return None if current is None else current.get_checkpoint()


def save_checkpoint(checkpoint: Savable) -> None:
    """Save a checkpoint without a report, even after StopTrial. Outside a trial, only check it.

    It counts as the trial's state after its last report. After StopTrial it must be saved within the grace period: 10
    seconds if the worker shuts down or the trial stops, 10 minutes if the trial pauses. In a seat other than 0 the
    checkpoint is only checked.

    Args:
        checkpoint: as in ``report``.

    Raises:
        RuntimeError: this is a child process of the trial.
        ConfigurationError: the checkpoint can't be saved as it is, or the experiment has no store for it.
        StoreUnavailable: the store can't be reached or written.
    """
    current = here()
    if current is not None:
        current.save(checkpoint)
        return
    if NOTE in os.environ:
        refuse("save_checkpoint")
    _check_checkpoint(checkpoint)


def should_checkpoint() -> bool:
    """Whether a user has requested a checkpoint and none has been saved since.

    It is False outside a trial, and in a seat other than 0.
    """
    current = here()
    return current is not None and current.is_save_wanted()


def get_context() -> Context:
    """Return this process's trial, seat and folder. Outside a trial, its fields have defaults.

    Raises:
        StoreUnavailable: the folder can't be made.
    """
    current = here()
    return Context() if current is None else current.context


def _check_checkpoint(checkpoint: Savable) -> None:
    content = check_savable(checkpoint)
    if isinstance(content, dict):
        from mqtune.checkpoints import encode_dict  # noqa: PLC0415

        encode_dict(content, {})


def _short_text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
