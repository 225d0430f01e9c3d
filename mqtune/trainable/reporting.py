"""What a trainable calls while it runs: ``report`` and its kin; outside a trial they do no harm."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from mqtune.core.codec import pack_metrics
from mqtune.trainable.process.protocol import RELAY
from mqtune.trainable.process.saver import check_savable
from mqtune.trainable.process.session import Context, Session

if TYPE_CHECKING:
    from mqtune.checkpoints import Checkpoint
    from mqtune.trainable.process.relay import RelayedSession
    from mqtune.trainable.process.saver import Savable

__all__ = ["get_checkpoint", "get_context", "here", "report", "save_checkpoint", "should_checkpoint"]


#: The session of this process, if it is a trial's, or that of a script which a trial runs.
current: Session | RelayedSession | None = None


def here() -> Session | RelayedSession | None:
    """Return the session of this process; a script joins its trial at the first call. None outside a trial."""
    global current  # noqa: PLW0603 - a process is one trial or none
    if current is None and RELAY in os.environ:
        from mqtune.trainable.process.relay import join  # noqa: PLC0415

        current = join()
    return current


def report(metrics: dict[str, Any], checkpoint: Savable | None = None) -> None:
    """Report metrics from a trainable, and with them perhaps a checkpoint.

    In a trial the report gets the next sequence number and this machine's time, and goes to the driver in order and
    exactly once; the call returns when the worker has it or the pipe to the worker has room for it, and waits while
    both are full. With ``sync="lockstep"`` it returns when the scheduler has decided on it, and raises StopTrial instead
    if that ends the trial. NumPy scalars and tensors without a dimension become numbers; NaN and infinity are allowed.
    Any thread of the trial's own process may call it. Outside a trial it logs the metrics, and saves nothing.

    A checkpoint is complete before the report that names it is sent.

    With each report of a trial come, unless they are among the metrics, whose own values win for that report:

    - ``training_iteration``: how many reports the trial has made.
    - ``time_this_iter_s``: seconds since the report before, or since the attempt began, without those that the report
      before took, such as for saving.
    - ``time_total_s``: the sum of these.

    The first and the last go on over attempts, from the checkpoint that the trial starts from once it has fetched that
    (``get_checkpoint``); one that doesn't begins anew.

    Args:
        metrics: names and values, among them the metric that the experiment optimises.
        checkpoint: the trial's state: a dict of at most 1 MB, kept in Redis, or the path of a directory, which is copied
            to the experiment's store, or a ``Checkpoint``.

    Raises:
        TypeError: a value can't be sent, or a name is not a string; the message names it, and nothing was sent.
        ReportTooLarge: it has more than 1 MiB, packed; the message names the largest value, and nothing was sent.
        ConfigurationError: the checkpoint can't be saved as it is, or the experiment has no store for it.
        StoreUnavailable: the store can't be reached or written.
        StopTrial: the trial should end.
    """
    current = here()
    if current is not None:
        current.report(metrics, checkpoint)
        return
    pack_metrics(0.0, metrics)
    if checkpoint is not None:
        _check(checkpoint)
    logger = logging.getLogger("mqtune.report")
    if not logger.hasHandlers():
        # Run as a plain script, without logging set up, the metrics should be seen.
        logger.addHandler(logging.StreamHandler(sys.stderr))
        logger.setLevel(logging.INFO)
    logger.info("%s", "  ".join(f"{name}={_short(value)}" for name, value in metrics.items()))


def get_checkpoint() -> Checkpoint | None:
    """Return the checkpoint that this trial starts from, or None: it starts from scratch, or this is no trial.

    A directory is fetched and verified at the first call. The copy is the trial's own and is deleted when the attempt
    has ended.

    Raises:
        CheckpointGone: it no longer exists.
        CheckpointBroken: it is not what was saved.
        StoreUnavailable: the store can't be reached.
    """
    current = here()
    return None if current is None else current.get_checkpoint()


def save_checkpoint(checkpoint: Savable) -> None:
    """Save a checkpoint without a report, also after StopTrial was raised; outside a trial it is only checked.

    It counts as one of the trial's state after its last report. After StopTrial it must be done within the grace: 10
    seconds when the trial's worker is going or the trial is to stop, 10 minutes when it is to pause.

    Args:
        checkpoint: as in ``report``.

    Raises:
        ConfigurationError: the checkpoint can't be saved as it is, or the experiment has no store for it.
        StoreUnavailable: the store can't be reached or written.
    """
    current = here()
    if current is None:
        _check(checkpoint)
    else:
        current.save(checkpoint)


def should_checkpoint() -> bool:
    """Whether somebody has asked for a checkpoint (``Tuner.save_trial``) and none was saved since; False outside a trial."""
    current = here()
    return current is not None and current.save_wanted


def get_context() -> Context:
    """Return which trial this is, and which folder is its own.

    Raises:
        StoreUnavailable: the folder can't be made.
    """
    current = here()
    return Context() if current is None else current.context


def _check(checkpoint: Savable) -> None:
    content = check_savable(checkpoint)
    if isinstance(content, dict):
        from mqtune.checkpoints import encode_dict  # noqa: PLC0415

        encode_dict(content, {})


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
