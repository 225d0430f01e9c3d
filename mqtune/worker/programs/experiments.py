"""Caches the experiments of a worker's attempts, and checks its tasks."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import reprlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from mqtune.core.codec import encode_value
from mqtune.core.definition import decode_definition
from mqtune.core.errors import ConfigurationError
from mqtune.core.keys import is_name
from mqtune.core.resources import Resources
from mqtune.core.tasks import is_task
from mqtune.core.trial import TrialId
from mqtune.journal.base import Claim, Journal
from mqtune.trainable.experiment_code import resolve
from mqtune.trainable.frozen_code import CODE_FOLDER
from mqtune.trainable.process.program import Program
from mqtune.trainable.spec import TrainableSpec
from mqtune.trainable.variables import check_variable
from mqtune.worker.programs.importers import ImportKey

logger = logging.getLogger(__name__)

#: The number of cached experiments: more than a worker usually has slots, and few enough for definitions of a megabyte.
REMEMBERED: Final = 32
#: Bytes of the seed of random generators: PyTorch takes 8.
_SEED_BYTES: Final = 8


def claim_of(experiment: str, trial: str, attempt: int, token: str, digest: str, shared_bytes: int | None) -> Claim:
    """Check the fields of a task, whose names become paths, and return the claim of its attempt.

    Raises:
        ConfigurationError: it is malformed.
    """
    are_names = is_name(experiment) and is_task(trial)
    are_sound = type(attempt) is int and type(digest) is str and type(shared_bytes) in (int, type(None))
    if not (are_names and are_sound and (shared_bytes or 0) >= 0):
        task = reprlib.repr([experiment, trial, attempt, digest, shared_bytes])
        raise ConfigurationError(f"the task {task} is malformed: no driver of mqtune has sent it")
    return Claim(TrialId(trial), attempt, token)


class ExperimentHere:
    """One experiment on this worker, with one version of its definition. Thread-safe.

    Attributes:
        journal: the experiment's journal, the same object for all versions of the definition.
        definition: the definition.
        digest: the definition's digest, which tasks contain.
    """

    def __init__(self, journal: Journal, definition: Mapping[str, Any], digest: str = "") -> None:
        self.journal = journal
        self.definition = definition
        self.digest = digest
        #: The resources for which each trial asks; the least resources if the definition's are unreadable.
        self.resources = Resources()
        with contextlib.suppress(ConfigurationError, TypeError, AttributeError):
            self.resources = Resources.decode(definition.get("resources", {}))
        self._has_store = False
        #: The last key, with the folders for which it was made.
        self._key: tuple[tuple[Path, Path | None], ImportKey] | None = None

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.journal.experiment

    @property
    def shared_bytes(self) -> int:
        """The memory that each trial asks for on a shared GPU, in bytes; 0 if it is unknown."""
        return self.resources.shared_bytes

    @property
    def spec(self) -> TrainableSpec:
        """The trainable.

        Raises:
            TrainableNotFound: the definition names no trainable.
        """
        return TrainableSpec.decode(self.definition["trainable"])

    def check_store(self) -> None:
        """Check that this worker can write to the experiment's store, until that has succeeded once.

        Raises:
            StoreUnavailable: it can't.
        """
        store = self.definition.get("store")
        if store and not self._has_store:
            # Imported here because most experiments have no store.
            from mqtune.checkpoints import open_store  # noqa: PLC0415

            open_store(store).check()
            self._has_store = True

    def import_key(self, code_root: Path, folder: Path | None, log_root: Path) -> ImportKey:
        """Return the key of the experiment's imports.

        Args:
            code_root: the folder below which the trainable is.
            folder: the working directory of trials; None for the worker's own.
            log_root: the worker's log folder, which has the copies of the experiment's code.

        Raises:
            ConfigurationError: an option of the definition is invalid.
        """
        known = self._key
        if known is not None and known[0] == (code_root, folder):
            return known[1]
        program = self._make_program(code_root, folder, log_root / self.name / CODE_FOLDER)
        key = ImportKey(program, checked_environment(self.definition.get("env") or {}))
        if program.code:
            # Otherwise the next attempt may find the files.
            self._key = (code_root, folder), key
        return key

    def _make_program(self, code_root: Path, folder: Path | None, code_folder: Path) -> Program:
        start_method = self.definition.get("start_method", "fork")
        if start_method not in ("fork", "spawn"):
            raise ConfigurationError(f"start_method={start_method!r}: there are only 'fork' and 'spawn'")
        seed = hashlib.sha256(encode_value([self.name, self.definition.get("seed")])).digest()[:_SEED_BYTES]
        return Program(
            self.spec,
            code_root,
            Path.cwd() if folder is None else folder,
            tuple(resolve(self.spec, code_root, self.definition.get("code_files")).items()),
            code_folder,
            tuple(map(str, self.definition.get("arguments", ()))),
            int.from_bytes(seed),
            spawns=start_method == "spawn",
        )


def checked_environment(values: object) -> tuple[tuple[str, str], ...]:
    """Check the environment variables that an experiment sets. Return them as sorted pairs.

    Raises:
        ConfigurationError: a variable is invalid, or could make other code run than the trainable.
    """
    if not isinstance(values, Mapping) or not all(isinstance(text, str) for pair in values.items() for text in pair):
        raise ConfigurationError(f"env={reprlib.repr(values)}: give names and values as texts")
    return tuple(sorted((name, check_variable(name, value)) for name, value in values.items()))


class Experiments:
    """Caches the most recently used experiments. Thread-safe.

    Args:
        open_journal: returns an experiment's journal, by its name.
    """

    def __init__(self, open_journal: Callable[[str], Journal]) -> None:
        self._open_journal = open_journal
        #: In the order of their last use.
        self._known: dict[str, ExperimentHere] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def journal(self, experiment: str) -> Journal:
        """Return an experiment's journal."""
        with self._lock:
            return self._journal_of(experiment, self._known.get(experiment))

    def of(self, experiment: str, digest: str) -> ExperimentHere:
        """Return an experiment with the version of its definition that has this digest.

        The definition is read again if the cached one has another digest.

        Raises:
            MqtuneError: there is no such experiment, its definition is malformed, or this worker may not read it.
        """
        with self._lock:
            known = self._use(experiment)
            if known is not None and known.digest == digest:
                return known
            journal = self._journal_of(experiment, known)
        definition = decode_definition(experiment, journal.definition())
        with self._lock:
            known = self._use(experiment)
            if known is None or known.digest != digest:
                # Another thread may have opened a journal first. All leases of an experiment are renewed through one
                # journal object.
                known = ExperimentHere(journal if known is None else known.journal, definition, digest)
                self._known[experiment] = known
                while len(self._known) > REMEMBERED:
                    del self._known[next(iter(self._known))]
            return known

    def _journal_of(self, experiment: str, known: ExperimentHere | None) -> Journal:
        return self._open_journal(experiment) if known is None else known.journal

    def _use(self, experiment: str) -> ExperimentHere | None:
        """Return a cached experiment, and mark it as used last; None if it is not cached."""
        known = self._known.pop(experiment, None)
        if known is not None:
            self._known[experiment] = known
        return known
