"""Modules that importers import before trials need them. A service provides them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from mqtune.trainable.process.late_imports import EVERY_PACKAGE, Batch
from mqtune.trainable.spec import TrainableSpec

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Preloads(Protocol):
    """Provides the modules that importers import early. Thread-safe."""

    def of(self, spec: TrainableSpec, told: Collection[str] = ()) -> list[Batch]:
        """Return batches of modules to import after the trainable, without the *told* ones."""

    def refused(self, spec: TrainableSpec) -> list[str]:
        """Return the packages that a trainable's importer must not import, or ``EVERY_PACKAGE``."""

    def learn(self, spec: TrainableSpec, batches: Iterable[Batch]) -> None:
        """Learn the modules that a trial has imported after its fork."""

    def settle(self, spec: TrainableSpec, asked: Sequence[str], loaded: Sequence[str]) -> None:
        """Learn which of the *asked* modules an importer had to import (*loaded*)."""

    def refuse(self, spec: TrainableSpec, module: str, why: str) -> bool:
        """Learn that no process can be forked after the import of *module* ("" if it is unknown).

        Return whether the next importer skips it, so that a retry is useful.
        """


class NoPreloads:
    """Leaves all imports of packages to trials."""

    def of(self, spec: TrainableSpec, told: Collection[str] = ()) -> list[Batch]:
        """Return an empty list."""
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
    """Wraps a service's preloads. Errors are logged, and cost only the early imports."""

    def __init__(self, preloads: Preloads) -> None:
        self._preloads = preloads

    def of(self, spec: TrainableSpec, told: Collection[str] = ()) -> list[Batch]:
        """Return the modules to import."""
        return self._tried(lambda: self._preloads.of(spec, told), [])

    def refused(self, spec: TrainableSpec) -> list[str]:
        """Return the packages not to import."""
        return self._tried(lambda: self._preloads.refused(spec), [EVERY_PACKAGE])

    def learn(self, spec: TrainableSpec, batches: Iterable[Batch]) -> None:
        """Pass on a trial's imports."""
        self._tried(lambda: self._preloads.learn(spec, batches), None)

    def settle(self, spec: TrainableSpec, asked: Sequence[str], loaded: Sequence[str]) -> None:
        """Pass on an importer's imports."""
        self._tried(lambda: self._preloads.settle(spec, asked, loaded), None)

    def refuse(self, spec: TrainableSpec, module: str, why: str) -> bool:
        """Pass on a module that can't be imported early. Return whether a retry is useful."""
        return self._tried(lambda: self._preloads.refuse(spec, module, why), False)

    def _tried(self, call: Callable[[], T], otherwise: T) -> T:
        try:
            return call()
        except Exception:
            logger.exception(
                "the preloads %s of this worker failed; the worker continues", type(self._preloads).__name__
            )
            return otherwise
