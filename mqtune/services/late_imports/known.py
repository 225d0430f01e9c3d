"""The late imports of each trainable, and the packages that are unsafe to import early."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

from mqtune.core.codec import decode_value, encode_value
from mqtune.trainable import EVERY_PACKAGE, USUAL, Batch, TrainableSpec, check_batches

logger = logging.getLogger(__name__)

#: Number of remembered trainables, most recently used: more than one person uses.
_REMEMBERED: Final = 200
#: With more unsafe packages, nothing is imported early for a trainable. Each has cost an import.
_MOST_REFUSED: Final = 3


#: The changes of a batch, in a comparable form for storage.
Changes = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _KnownImports:
    """What is known of one trainable's late imports: those in its trials, after the fork.

    Importers import the modules in *tried* and *untried* early, before they fork trials.
    """

    #: Modules that an importer has imported early, each with the changes of the trial's environment before its import.
    tried: dict[str, Changes] = field(default_factory=dict)
    #: The same for modules that no importer has imported early so far.
    untried: dict[str, Changes] = field(default_factory=dict)
    #: Packages that are never imported early, because they make forks unsafe.
    refused: set[str] = field(default_factory=set)
    #: All late imports of trials so far.
    heard: set[str] = field(default_factory=set)

    @property
    def refuses_all(self) -> bool:
        return EVERY_PACKAGE in self.refused or len(self.refused) > _MOST_REFUSED

    def batches(self, told: Collection[str]) -> list[Batch]:
        if self.refuses_all:
            return []
        known = [*self.tried.items(), *self.untried.items()]
        left = [(name, changes) for name, changes in known if name not in told and _package(name) not in self.refused]
        return [(dict(key), [name for name, _ in some]) for key, some in groupby(left, itemgetter(1))]


class LateImports:
    """Remembers each trainable's late imports: those in trials, after the fork. Thread-safe.

    Modules that importers have imported are stored in a file beside their logs, one for each Python environment. A
    restarted worker, and the next experiment with the same trainable, use it. If the file can't be read or written, the
    first trials import the modules themselves.

    Args:
        log_root: the worker's log folder.
        usual: presumed late imports of a trainable before its first trial.
    """

    def __init__(self, log_root: Path, usual: Sequence[str] = USUAL) -> None:
        self._usual = usual
        environment = hashlib.sha256(f"{sys.prefix}\0{sys.version}".encode()).hexdigest()[:16]
        self._path = log_root / ".zygotes" / f"late-imports-{environment}.msgpack"
        self._lock = threading.Lock()
        self._known: dict[str, _KnownImports] | None = None

    def of(self, spec: TrainableSpec, told: Collection[str] = ()) -> list[Batch]:
        """Return the batches of modules that an importer should import early, in order.

        Modules that it was *told* of before are left out.
        """
        with self._lock:
            return self._of(spec).batches(told)

    def learn(self, spec: TrainableSpec, batches: Iterable[Batch]) -> None:
        """Add the late imports of a trial."""
        with self._lock:
            known = self._of(spec)
            for changes, names in batches:
                for name in names:
                    if name not in known.heard:
                        known.heard.add(name)
                        known.untried[name] = tuple(sorted(changes.items()))

    def settle(self, spec: TrainableSpec, asked: Sequence[str], loaded: Sequence[str]) -> None:
        """Record which of the *asked* modules an importer actually had to import (*loaded*).

        The others need not be sent again.
        """
        with self._lock:
            known = self._of(spec)
            is_new = any(name in known.untried for name in loaded)
            fresh = {name: known.untried.pop(name) for name in asked if name in known.untried}
            known.tried.update((name, fresh[name]) for name in loaded if name in fresh)
        if is_new:
            self._keep(spec)

    def refuse(self, spec: TrainableSpec, module: str, why: str) -> bool:
        """Stop early imports of a module's package, or of all if *module* is empty. Return True."""
        logger.info("trainable %s: %s", spec, why)
        with self._lock:
            self._of(spec).refused.add(_package(module) or EVERY_PACKAGE)
        self._keep(spec)
        return True

    def refused(self, spec: TrainableSpec) -> list[str]:
        """Return the packages that a trainable's importer must not import, or ``EVERY_PACKAGE``."""
        with self._lock:
            known = self._of(spec)
            return [EVERY_PACKAGE] if known.refuses_all else sorted(known.refused)

    def _of(self, spec: TrainableSpec) -> _KnownImports:
        if self._known is None:
            self._known = self._read()
        name = str(spec)
        known = self._known.pop(name, None) or _KnownImports(untried=dict.fromkeys(self._usual, ()))
        # Most recently used last.
        self._known[name] = known
        return known

    def _read(self) -> dict[str, _KnownImports]:
        try:
            kept = decode_value(self._path.read_bytes())
            return {name: _decoded(values) for name, values in kept.items()}
        except (OSError, ValueError, TypeError, AttributeError, LookupError):
            return {}

    def _keep(self, spec: TrainableSpec) -> None:
        """Write the knowledge of a trainable into the file, and keep other workers' entries."""
        with self._lock:
            known, all_known = self._of(spec), self._read()
            all_known.pop(str(spec), None)
            all_known[str(spec)] = known
            names = list(all_known)[-_REMEMBERED:]
            values = {name: [all_known[name].tried, sorted(all_known[name].refused)] for name in names}
            # Another worker may be reading the file.
            draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                draft.write_bytes(encode_value(values))
                draft.replace(self._path)


def _decoded(values: tuple[Mapping[str, Sequence[tuple[str, str]]], Sequence[str]]) -> _KnownImports:
    modules, refused = values
    check_batches([({**dict(changes)}, [name]) for name, changes in modules.items()])
    tried = {name: tuple((variable, value) for variable, value in changes) for name, changes in modules.items()}
    return _KnownImports(tried=tried, refused=set(refused), heard=set(tried))


def _package(module: str) -> str:
    return module.partition(".")[0]
