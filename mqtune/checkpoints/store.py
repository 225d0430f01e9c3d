"""The contract of a checkpoint store, and the mark by which two machines know that they reach the same one."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mqtune.checkpoints.files import remove_tree, token
from mqtune.core.errors import CheckpointGone, CheckpointVersionError, ConfigurationError, StoreUnavailable
from mqtune.core.trial import CheckpointId

__all__ = [
    "MARK",
    "SWEEP_AFTER_S",
    "CheckpointStore",
    "check_id",
    "checked_name",
    "gone",
    "is_id",
    "myself",
    "new_mark",
    "split_name",
    "with_name",
]

#: After how many seconds without a change what lies aside was left by a crash: more than any save takes.
SWEEP_AFTER_S: Final = 86_400.0

#: Ids become names of folders and of objects: what every file system and object store takes as it is, with no meaning.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
#: What a store's mark is called, in every store.
MARK: Final = "store.json"
_VERSION: Final = 1
#: Ends a URL that means one store and no other one that may be found there.
_NAMED_URL: Final = re.compile(r"(?P<url>.*)#mqtune-store=(?P<name>[0-9a-f]+)", re.DOTALL)


_SECRET: Final = re.compile(r"(?<=://)[^/@]*@")


class CheckpointStore(ABC):
    """Where checkpoints that are folders lie; every machine of an experiment has its own store object for the same place.

    **A checkpoint that is there is complete.** It is written aside and shown in one step, on disk when ``save`` returns;
    a crash before leaves something that is never taken for a checkpoint, and that ``sweep`` removes. It never changes.
    A checkpoint without any file is one too: it has counters.

    **Threads and processes.** Any number may use one place at once, and several threads one store object. ``delete`` may
    come while others ``fetch``: they get either the whole checkpoint or CheckpointGone.

    **Errors.** Every method raises StoreUnavailable, with the place and the reason, when the store can't be reached, read
    or written, or is full; ConfigurationError for an id that can't be a name.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """What ``open_store`` opens this store by, on any machine.

        After ``create`` or ``check`` it also names the one store that was found, so that ``check`` on another machine
        can tell a folder of the same name that is not the same folder.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return the place as people write it, without secrets."""

    @abstractmethod
    def create(self) -> None:
        """Make the store if it is not there yet, and ``check`` it; for the driver, before anything is saved."""

    @abstractmethod
    def check(self) -> None:
        """See that this machine reaches the store that ``create`` made, and can write to it; for each worker.

        Raises:
            StoreUnavailable: it can't; the message says who, where, why and what to do.
        """

    @abstractmethod
    def save(self, id: CheckpointId, source: Path, counters: Mapping[str, Any]) -> int:  # noqa: A002
        """Save the folder *source* as checkpoint *id*, and return how many bytes its files have.

        Nested and empty folders, empty files, any UTF-8 name and the owner's permission to execute survive; times and
        owners don't. A link counts as the file that it leads to, which must lie inside of *source*. *source* stays as it
        is, unless ``staging`` gave it: then it may be gone. After an error, or when the process is told to end
        meanwhile, there is no such checkpoint. Saving the same content again does nothing.

        Args:
            id: its name for ever.
            source: a folder that nobody writes to meanwhile.
            counters: numbers or strings by name, kept with it.

        Raises:
            CheckpointExists: there is an *id* with another content.
            ConfigurationError: *source* is no folder, or holds what can't be saved; or a counter is no number or string.
        """

    @abstractmethod
    def fetch(self, id: CheckpointId, target: Path) -> dict[str, Any]:  # noqa: A002
        """Copy checkpoint *id* into the new folder *target*, and return its counters.

        Sizes and hashes are checked on the way; *target* is there when all of it is, and not after an error.

        Raises:
            CheckpointGone: there is no *id*.
            CheckpointBroken: it is not what was saved.
            CheckpointVersionError: a later mqtune saved it.
            ConfigurationError: *target* is there already.
        """

    @abstractmethod
    def exists(self, id: CheckpointId) -> bool:  # noqa: A002
        """Whether there is such a checkpoint; it may be broken all the same."""

    @abstractmethod
    def ids(self) -> list[CheckpointId]:
        """Return the ids of all checkpoints, sorted."""

    @abstractmethod
    def delete(self, id: CheckpointId) -> None:  # noqa: A002
        """Delete a checkpoint; one that is not there is none the less deleted. It is gone at once, or is whole."""

    @abstractmethod
    def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        """Remove what crashes left, and return how many such things; checkpoints stay.

        What was touched within the last *older_than_s* seconds, by the store's clock, may be a save that goes on.
        """

    def staging(self) -> Path:
        """Return a new, empty folder to write a checkpoint into, from where ``save`` may move it instead of copying it.

        The caller removes it if it is still there after ``save``; ``sweep`` does if it lies in the store.
        """
        import tempfile  # noqa: PLC0415 - a trial that saves nothing has no use for it

        return Path(tempfile.mkdtemp(prefix="mqtune-checkpoint-"))

    def copy(self, id: CheckpointId, new_id: CheckpointId) -> int:  # noqa: A002
        """Save what checkpoint *id* holds as *new_id* too, and return how many bytes its files have.

        Raises:
            CheckpointGone: there is no *id*.
            CheckpointBroken: it is not what was saved.
            CheckpointExists: there is a *new_id* with another content.
        """
        check_id(new_id)
        folder = self.staging()
        try:
            # What fetch makes must not be there before.
            folder.rmdir()
            counters = self.fetch(id, folder)
            return self.save(new_id, folder, counters)
        finally:
            remove_tree(folder)


def check_id(id: str) -> None:  # noqa: A002
    """Raise unless *id* is safe as a name.

    Raises:
        ConfigurationError: it is empty or too long, or has characters that may have a meaning in a path or URL.
    """
    if not is_id(id):
        raise ConfigurationError(
            f"{id!r} can't be the id of a checkpoint; ids have 1 to 200 letters of A-Z a-z 0-9 . _ - and begin with a letter "
            "or digit"
        )


def is_id(name: str) -> bool:
    """Whether *name* is safe as the id of a checkpoint."""
    return _ID.fullmatch(name) is not None


def gone(id: CheckpointId, place: str) -> CheckpointGone:  # noqa: A002
    """Return the error for a checkpoint that is not in the store at *place*."""
    return CheckpointGone(
        f"checkpoint {id} is not in {place}: it was deleted, or never saved there; start from another one, or have more kept"
    )


def without_secrets(url: str) -> str:
    """Return a URL as it may be shown: without a user's name and password."""
    return _SECRET.sub("…@", url)


def myself() -> str:
    """Return who this is, for an error: the user and the machine."""
    import getpass  # noqa: PLC0415
    import socket  # noqa: PLC0415

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user} on {socket.gethostname()}"


def new_mark() -> bytes:
    """Return the mark of a new store, with a name that no other has."""
    return json.dumps({"version": _VERSION, "name": token()}).encode()


def with_name(url: str, name: str) -> str:
    """Return *url* as that of the store *name*, or as it is if that is empty."""
    return f"{url}#mqtune-store={name}" if name else url


def split_name(url: str) -> tuple[str, str]:
    """Return a URL without the name of the store that it means, and that name, or empty."""
    named = _NAMED_URL.fullmatch(url)
    return (named["url"], named["name"]) if named else (url, "")


def checked_name(mark: bytes | None, expected: str, place: str) -> str:
    """Return the name that the mark found at *place* gives to its store.

    Args:
        mark: what was found, or None.
        expected: the name that it must be; empty for any.
        place: where it was looked for, as people write it.

    Raises:
        StoreUnavailable: there is no store, or another one.
        CheckpointVersionError: a later mqtune made it.
    """
    share = (
        "every machine must reach the same place by the same name: mount the shared folder there, or use a store that all "
        "reach, such as s3://…"
    )
    if mark is None:
        raise StoreUnavailable(f"{myself()} finds no checkpoint store at {place}, which the driver made; {share}")
    try:
        read = json.loads(mark)
        version, name = read["version"], read["name"]
    except (ValueError, TypeError, KeyError):
        raise StoreUnavailable(
            f"{myself()} can't read {MARK} of the checkpoint store at {place}, which has {mark[:100]!r}; remove what is there "
            "or use another place"
        ) from None
    if version != _VERSION:
        raise CheckpointVersionError(
            f"the checkpoint store at {place} has version {version!r}; this mqtune reads version {_VERSION}: upgrade it"
        )
    if expected and name != expected:
        raise StoreUnavailable(
            f"{myself()} finds another checkpoint store at {place} ({name}) than the experiment's ({expected}); {share}"
        )
    return str(name)
