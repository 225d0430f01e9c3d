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


class SafePreloads:
    """Calls the preloads of a service. Errors are logged, and cost only the early imports.

    Without a service, all imports of packages are left to trials.
    """

    def __init__(self, preloads: Preloads | None = None) -> None:
        self._preloads = preloads

    def of(self, spec: TrainableSpec, told: Collection[str] = ()) -> list[Batch]:
        """Return the modules to import."""
        return self._call(lambda preloads: preloads.of(spec, told), [])

    def refused(self, spec: TrainableSpec) -> list[str]:
        """Return the packages not to import."""
        return self._call(lambda preloads: preloads.refused(spec), [EVERY_PACKAGE])

    def learn(self, spec: TrainableSpec, batches: Iterable[Batch]) -> None:
        """Pass on a trial's imports."""
        self._call(lambda preloads: preloads.learn(spec, batches), None)

    def settle(self, spec: TrainableSpec, asked: Sequence[str], loaded: Sequence[str]) -> None:
        """Pass on an importer's imports."""
        self._call(lambda preloads: preloads.settle(spec, asked, loaded), None)

    def refuse(self, spec: TrainableSpec, module: str, why: str) -> bool:
        """Pass on a module that can't be imported early. Return whether a retry is useful."""
        return self._call(lambda preloads: preloads.refuse(spec, module, why), False)

    def _call(self, call: Callable[[Preloads], T], otherwise: T) -> T:
        if self._preloads is not None:
            try:
                return call(self._preloads)
            except Exception:
                logger.exception(
                    "the preloads %s of this worker failed; the worker continues", type(self._preloads).__name__
                )
        return otherwise


NO_PRELOADS: Final = SafePreloads()
