"""Which checkpoints something still names, and so may not be deleted."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from mqtune.core.trial import CheckpointId

__all__ = ["References"]


class References:
    """Which checkpoints are named, and by what; each step takes the same time however many there are.

    A holder is whatever may still need a checkpoint: a paused trial its newest one, an attempt that has not ended the one
    that it started from, a fork or a decision that is not carried out the one that it names. A holder holds one at most,
    so that saying something twice, as a replay may, changes nothing. ``checkpoint in references`` is what ``Retention``
    asks.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, CheckpointId] = {}
        self._holders: dict[CheckpointId, dict[Hashable, None]] = {}

    def hold(self, holder: Hashable, checkpoint: CheckpointId) -> CheckpointId:
        """Have *holder* name *checkpoint*, and no longer what it named before; empty for nothing.

        Returns:
            what nothing names any more because of that, or empty.
        """
        before = self._held.get(holder, CheckpointId(""))
        if checkpoint == before:
            return CheckpointId("")
        freed = self.release(holder)
        if checkpoint:
            self._held[holder] = checkpoint
            self._holders.setdefault(checkpoint, {})[holder] = None
        return freed

    def release(self, holder: Hashable) -> CheckpointId:
        """Have *holder* name nothing.

        Returns:
            what nothing names any more because of that, or empty.
        """
        checkpoint = self._held.pop(holder, CheckpointId(""))
        if not checkpoint:
            return checkpoint
        holders = self._holders[checkpoint]
        del holders[holder]
        if holders:
            return CheckpointId("")
        del self._holders[checkpoint]
        return checkpoint

    def holders(self, checkpoint: CheckpointId) -> list[Hashable]:
        """Return what names a checkpoint, in the order in which it came to it."""
        return list(self._holders.get(checkpoint, ()))

    def __contains__(self, checkpoint: object) -> bool:
        return checkpoint in self._holders

    def __iter__(self) -> Iterator[CheckpointId]:
        return iter(self._holders)

    def __len__(self) -> int:
        return len(self._holders)
