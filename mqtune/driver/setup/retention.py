"""Retention of checkpoints: the rule for deletions, and references that protect checkpoints."""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mqtune.core.checks import one_of, whole_number
from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import OutcomeConstraint
from mqtune.core.trial import CheckpointId, SavedCheckpoint, is_in_memory


@dataclass(frozen=True, slots=True)
class Retention:
    """The rule which of a trial's checkpoints are kept: the newest and the best ones.

    Of folder checkpoints, the *keep_last* newest and the *keep_best* best are kept. One checkpoint may be both. Of
    equal scores the first is better. A checkpoint whose score is missing, NaN or not a number is never the best. With
    the experiment's metric, a checkpoint whose report satisfies the outcome constraints is better than one whose report
    violates one.

    A dict checkpoint takes memory in Redis, so it is kept only while it is the trial's newest checkpoint of all.

    The newest checkpoint is always kept. A referenced one, for example by a fork that has not begun, is also kept until
    the rule is applied without the reference. While reports have checkpoints, the driver applies the rule at least
    every 10 s, and after 32 checkpoints of an experiment.

    The result does not depend on how often the rule is applied: a deleted checkpoint would not be kept later.

    Args:
        keep_last: number of newest checkpoints to keep, at least 1. None keeps all.
        keep_best: number of best checkpoints to keep.
        score: the metric in a checkpoint's report. If empty, ``of`` sets the experiment's metric.
        mode: "min" or "max" of *score*. It is empty if and only if *score* is.
        constraints: outcome constraints of the score. ``of`` sets those of the experiment.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    keep_last: int | None = 1
    keep_best: int = 1
    score: str = ""
    mode: Literal["min", "max", ""] = ""
    constraints: tuple[OutcomeConstraint, ...] = ()

    def __post_init__(self) -> None:
        if self.keep_last is not None:
            object.__setattr__(self, "keep_last", whole_number("Checkpoints", "keep_last", self.keep_last, 1))
        object.__setattr__(self, "keep_best", whole_number("Checkpoints", "keep_best", self.keep_best, 0))
        if not isinstance(self.score, str):
            raise ConfigurationError(f"Checkpoints(score={self.score!r}): give the name of a metric")
        one_of("Checkpoints", "mode", self.mode, ("min", "max", ""))
        if bool(self.score) is not bool(self.mode):
            raise ConfigurationError(
                f"Checkpoints(score={self.score!r}, mode={self.mode!r}): give both, or neither for the experiment's "
                f"metric"
            )

    def of(
        self, metric: str, mode: Literal["min", "max"], constraints: tuple[OutcomeConstraint, ...] = ()
    ) -> Retention:
        """Return this rule with an experiment's metric if it has no score of its own.

        With an empty metric, no checkpoint is kept as one of the best.
        """
        if self.score:
            return self
        if not metric:
            return replace(self, keep_best=0)
        return replace(self, score=metric, mode=mode, constraints=constraints)

    def to_delete(
        self, checkpoints: Mapping[CheckpointId, SavedCheckpoint], pinned: Container[CheckpointId] = ()
    ) -> list[CheckpointId]:
        """Return the checkpoints of a trial that should be deleted, oldest first.

        Args:
            checkpoints: existing checkpoints of one trial, oldest first.
            pinned: checkpoints to keep in any case, such as ``References``.

        Raises:
            ConfigurationError: the rule keeps the best without a metric: ``of`` was not called.
        """
        ids = list(checkpoints)
        if len(ids) == 1:
            return []
        folders = [id_ for id_ in ids if not is_in_memory(id_)]
        kept = {*ids[-1:], *(folders if self.keep_last is None else folders[-self.keep_last :])}
        # Often all checkpoints are kept, and no score is needed.
        if self.keep_best and self.keep_last is not None and folders and len(kept) < len(ids):
            kept.update(self._best(folders, checkpoints))
        return [id_ for id_ in ids if id_ not in kept and id_ not in pinned]

    def _best(
        self, folders: list[CheckpointId], checkpoints: Mapping[CheckpointId, SavedCheckpoint]
    ) -> list[CheckpointId]:
        if not self.score:
            raise ConfigurationError("Retention has no score to find the best checkpoints by; call of(metric, mode)")
        sign = 1.0 if self.mode == "max" else -1.0
        scored = [
            (self._keeps_to_constraints(checkpoints[id_]), sign * value, -place, id_)
            for place, id_ in enumerate(folders)
            if not math.isnan(value := _number(checkpoints[id_].metrics.get(self.score)))
        ]
        return [id_ for *_, id_ in sorted(scored)[-self.keep_best :]]

    def _keeps_to_constraints(self, saved: SavedCheckpoint) -> bool:
        return all(constraint.excess(saved.metrics) <= 0 for constraint in self.constraints)


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


class References:
    """Checkpoints that are still needed, by the holders that need them.

    Operations take constant time. A holder references at most one checkpoint, so repeated calls, as in a replay, change
    nothing. A paused trial references its newest checkpoint, a running attempt the checkpoint that it started from, and
    a pending fork or decision the checkpoint that it will start from. ``checkpoint in references`` tells whether it has
    a holder.
    """

    def __init__(self) -> None:
        self._checkpoint_of: dict[Hashable, CheckpointId] = {}
        #: Number of holders of each checkpoint.
        self._holders: dict[CheckpointId, int] = {}

    def hold(self, holder: Hashable, checkpoint: CheckpointId) -> CheckpointId:
        """Let *holder* reference this checkpoint, and no longer its earlier one.

        With an empty id it references none.

        Returns:
            The earlier checkpoint if it has no other holder, else an empty id.
        """
        checkpoint_of, holders = self._checkpoint_of, self._holders
        before = checkpoint_of.get(holder, CheckpointId(""))
        if before == checkpoint:
            return CheckpointId("")
        if checkpoint:
            checkpoint_of[holder] = checkpoint
            holders[checkpoint] = holders.get(checkpoint, 0) + 1
        else:
            del checkpoint_of[holder]
        if before and holders[before] > 1:
            holders[before] -= 1
            return CheckpointId("")
        holders.pop(before, None)
        return before

    def __bool__(self) -> bool:
        """Whether there are any references."""
        return bool(self._checkpoint_of)

    def __contains__(self, checkpoint: object) -> bool:
        return checkpoint in self._holders
