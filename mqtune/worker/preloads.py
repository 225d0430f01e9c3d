"""The modules that importers import before trials need them, as a service may know them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from mqtune.trainable.process.late_imports import EVERY_PACKAGE, Batch
from mqtune.trainable.spec import TrainableSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Preloads(Protocol):
    """Knows which modules importers import before trials need them. Any thread may use it."""

    def of(self, spec: TrainableSpec, told: Collection[str] = ()) -> list[Batch]:
        """Return the modules to import after the trainable's, in order, without those that were *told* before."""

    def refused(self, spec: TrainableSpec) -> list[str]:
        """Return the packages that a trainable's importer must not import. ``EVERY_PACKAGE`` stands for all."""

    def learn(self, spec: TrainableSpec, batches: Iterable[Batch]) -> None:
        """Hear which modules a trial has imported after its fork."""

    def settle(self, spec: TrainableSpec, asked: Sequence[str], loaded: Sequence[str]) -> None:
        """Hear which of the *asked* modules an importer had to import."""

    def refuse(self, spec: TrainableSpec, module: str, why: str) -> bool:
        """Hear that no process can be forked behind a module; empty if any may be the cause.

        Return whether the next importer does without it, so that it is worth another try.
        """


class NoPreloads:
    """Leaves all imports of packages to trials."""

    def of(self, spec: TrainableSpec, told: Collection[str] = ()) -> list[Batch]:
        """Return none."""
        return []

    def refused(self, spec: TrainableSpec) -> list[str]:
        """Return all packages."""
        return [EVERY_PACKAGE]

    def learn(self, spec: TrainableSpec, batches: Iterable[Batch]) -> None:
        """Do nothing."""

    def settle(self, spec: TrainableSpec, asked: Sequence[str], loaded: Sequence[str]) -> None:
        """Do nothing."""

    def refuse(self, spec: TrainableSpec, module: str, why: str) -> bool:
        """Return False: no module was imported early."""
        return False


NO_PRELOADS: Final = NoPreloads()


class SafePreloads:
    """Preloads of a service, whose errors are logged and cost early imports alone."""

    def __init__(self, preloads: Preloads) -> None:
        self._preloads = preloads

    def of(self, spec: TrainableSpec, told: Collection[str] = ()) -> list[Batch]:
        """Return the modules to import."""
        return self._tried(lambda: self._preloads.of(spec, told), [])

    def refused(self, spec: TrainableSpec) -> list[str]:
        """Return the packages not to import."""
        return self._tried(lambda: self._preloads.refused(spec), [EVERY_PACKAGE])

    def learn(self, spec: TrainableSpec, batches: Iterable[Batch]) -> None:
        """Tell what a trial has imported."""
        self._tried(lambda: self._preloads.learn(spec, batches), None)

    def settle(self, spec: TrainableSpec, asked: Sequence[str], loaded: Sequence[str]) -> None:
        """Tell what an importer has imported."""
        self._tried(lambda: self._preloads.settle(spec, asked, loaded), None)

    def refuse(self, spec: TrainableSpec, module: str, why: str) -> bool:
        """Tell what can't be imported early; return whether another try makes sense."""
        return self._tried(lambda: self._preloads.refuse(spec, module, why), False)

    def _tried(self, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except Exception:
            logger.exception("the preloads %s of this worker failed; the worker goes on", type(self._preloads).__name__)
            return otherwise
