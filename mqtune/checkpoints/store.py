"""The interface of checkpoint stores, and the marks that identify a store on all machines."""

from __future__ import annotations

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final, NamedTuple

from mqtune.checkpoints.checkpoint import Counters
from mqtune.checkpoints.files import remove_tree, token
from mqtune.core.codec import is_version
from mqtune.core.errors import CheckpointGone, CheckpointVersionError, ConfigurationError, StoreUnavailable
from mqtune.core.trial import CheckpointId

#: After this many seconds without a change, unfinished files count as orphans of a crash. No save takes as long.
SWEEP_AFTER_S: Final = 86_400.0

#: Ids become names of folders and objects, so each file system and object store must accept them.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
MARK: Final = "store.json"
_VERSION: Final = 1
#: A URL with the name of a store. It leads to no other store at the same place.
_NAMED_URL: Final = re.compile(r"(?P<url>.*)#mqtune-store=(?P<name>[0-9a-f]+)", re.DOTALL)


_SECRET: Final = re.compile(r"(?<=://)[^/@]*@")
#: Instead of a broker's id: the experiment exists only in a folder.
ARCHIVE: Final = "archive"
#: Instead of a broker's id: the driver's account may not read the id.
UNKNOWN: Final = "unknown"


class Tenant(NamedTuple):
    """An experiment with checkpoints in a store, and its broker.

    Attributes:
        broker: the id in the broker's data. A copy of the data has the same id.
        run: the id of the broker's process. A copy has another one. Empty if unknown.
        place: the broker's address, as ``journal.identity.place_of`` returns it. Empty if unknown.
    """

    broker: str
    experiment: str
    run: str = ""
    place: str = ""

    @property
    def file_name(self) -> str:
        """The name of its file in a store. A broker and its copy have different files."""
        place = f".{hashlib.sha256(self.place.encode()).hexdigest()[:8]}" if self.place else ""
        return f"{self.broker}{place}.json"

    def is_same(self, other: Tenant) -> bool:
        """Whether both are certainly the same experiment on the same broker.

        While a broker's process runs, its address may change. After a restart the address must be the same, because at
        another one it could be a copy.
        """
        if self[:2] != other[:2]:
            return False
        is_same_process = (self.run, self.place) == (other.run, other.place) or (self.run and self.run == other.run)
        return bool(is_same_process) or _are_one_place(self.place, other.place)

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, mark: bytes) -> Tenant:
        """Decode a tenant. If that is impossible, return a tenant with the broker UNKNOWN."""
        try:
            read = json.loads(mark)
            return cls(
                *(str(read[name]) for name in cls._fields[:2]), *(str(read.get(name, "")) for name in cls._fields[2:])
            )
        except (ValueError, TypeError, KeyError):
            return cls(UNKNOWN, "")


def _are_one_place(first: str, second: str) -> bool:
    """Whether two addresses lead to the same broker: names are equal, and IP addresses if known."""
    (name, _, numbers), (other_name, _, other_numbers) = first.partition(" "), second.partition(" ")
    return name == other_name != "" and (not numbers or not other_numbers or numbers == other_numbers)


class CheckpointStore(ABC):
    """Stores checkpoints that are folders. Each process opens its own object for the same place.

    **A checkpoint that exists is complete.** It is written aside, made visible atomically, and on disk when ``save``
    returns. A crash before that leaves orphaned files. They are never read as a checkpoint, and ``sweep`` removes them.
    A checkpoint never changes. It may have counters and no files.

    **Threads and processes.** Any number of processes may use one place, and several threads one object. A ``fetch``
    during a ``delete`` returns the whole checkpoint or raises CheckpointGone.

    **Errors.** Every method raises StoreUnavailable, with the place and the reason, if the store can't be reached, read
    or written, or is full. An id that can't be a name raises ConfigurationError.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL with which ``open_store`` opens this store on any machine.

        After ``create`` or ``check``, it should also have the store's name. Then ``check`` on another machine detects a
        different folder with the same path.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return the place for messages and logs, without secrets."""

    @abstractmethod
    def create(self) -> None:
        """Make the store if it is missing, and ``check`` it. The driver calls this before all saves."""

    @abstractmethod
    def check(self) -> None:
        """Check that this machine reaches the driver's store and can write to it.

        Each worker calls this.

        Raises:
            StoreUnavailable: the check failed. The message names the user, the machine, the place, the reason and the
                way out.
        """

    @abstractmethod
    def save(self, id: CheckpointId, source: Path, counters: Counters) -> int:  # noqa: A002
        """Save the folder *source* as checkpoint *id*. Return the size of its files in bytes.

        Nested and empty folders, empty files, any UTF-8 name and the owner's permission to execute are preserved. Times
        and owners are not. A link is saved as its target, a file that must be inside *source*. *source* stays
        unchanged, but a folder from ``staging`` may be gone afterwards. After an error, or if the process is told to
        end before ``save`` returns, the checkpoint does not exist. Saving the same content again does nothing.

        Args:
            source: the folder. Nothing may write to it during the call.
            counters: numbers or strings by name.

        Raises:
            CheckpointExists: *id* exists with another content.
            ConfigurationError: *source* is not a folder, or has a file that can't be saved, or a counter is neither a
                number nor a string.
        """

    @abstractmethod
    def fetch(self, id: CheckpointId, target: Path) -> Counters:  # noqa: A002
        """Copy checkpoint *id* into the new folder *target*, and return its counters.

        Sizes and hashes are checked. *target* appears only when it is complete. After an error it does not exist.

        Raises:
            CheckpointGone: *id* does not exist.
            CheckpointBroken: its files differ from the saved ones.
            CheckpointVersionError: a later version of mqtune saved it.
            ConfigurationError: *target* already exists.
        """

    @abstractmethod
    def exists(self, id: CheckpointId) -> bool:  # noqa: A002
        """Return whether a checkpoint exists. Its files are not checked."""

    @abstractmethod
    def ids(self) -> list[CheckpointId]:
        """Return the ids of all checkpoints, sorted."""

    @abstractmethod
    def delete(self, id: CheckpointId) -> None:  # noqa: A002
        """Delete a checkpoint atomically: it is gone or complete. Do nothing if it is missing."""

    @abstractmethod
    def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        """Remove unfinished saves that crashes have left, and return their number.

        Saves that changed in the last *older_than_s* seconds, by the store's clock, stay, because they may be in
        progress.
        """

    # For ``mqtune gc``. It never deletes a store that lacks these methods.

    def claim(self, tenant: Tenant) -> None:
        """Record that an experiment on a broker has checkpoints here."""

    def release(self, tenant: Tenant) -> None:
        """Remove the record of ``claim``, if it exists."""

    def tenants(self) -> list[Tenant]:
        """Return the experiments that ``claim`` has recorded."""
        return []

    def folders(self) -> list[str]:
        """Return the names of folders and files directly below this place.

        Each may be another store.
        """
        return []

    def idle_s(self) -> float:
        """Return the seconds since the last change in the store, by its clock. 0 if unknown."""
        return 0.0

    def remove(self) -> None:
        """Delete all checkpoints and the store's own files. Other files stay."""
        for checkpoint in self.ids():
            self.delete(checkpoint)

    def staging(self) -> Path:
        """Make an empty folder for a checkpoint. ``save`` may move it instead of copying its files.

        If it still exists after ``save``, the caller should remove it. If it is inside the store, ``sweep`` removes it,
        too.
        """
        import tempfile  # noqa: PLC0415 - slow to import, and most trials don't need it

        return Path(tempfile.mkdtemp(prefix="mqtune-checkpoint-"))

    def copy(self, id: CheckpointId, new_id: CheckpointId) -> int:  # noqa: A002
        """Save a copy of checkpoint *id* as *new_id*. Return the size of its files in bytes.

        Raises:
            CheckpointGone: *id* does not exist.
            CheckpointBroken: its files differ from the saved ones.
            CheckpointExists: *new_id* exists with another content.
        """
        check_id(new_id)
        folder = self.staging()
        try:
            # fetch must make the folder itself.
            folder.rmdir()
            counters = self.fetch(id, folder)
            return self.save(new_id, folder, counters)
        finally:
            remove_tree(folder)


def check_id(id: str) -> None:  # noqa: A002
    """Check that *id* is a safe name for a checkpoint.

    Raises:
        ConfigurationError: *id* is empty, too long, or has characters with a meaning in a path or URL.
    """
    if not is_id(id):
        raise ConfigurationError(
            f"{id!r} can't be the id of a checkpoint; ids have 1 to 200 characters from A-Z a-z 0-9 . _ - and begin "
            "with a letter or digit"
        )


def is_id(name: str) -> bool:
    """Whether *name* is a safe id for a checkpoint."""
    return _ID.fullmatch(name) is not None


def gone(id: CheckpointId, place: str) -> CheckpointGone:  # noqa: A002
    """Return the error for a checkpoint that is not in the store at *place*."""
    return CheckpointGone(
        f"checkpoint {id} is not in {place}: it was deleted, or never saved there; start from another one, or keep "
        "more checkpoints"
    )


def without_secrets(url: str) -> str:
    """Return a URL without its user name and password, for messages."""
    return _SECRET.sub("…@", url)


def myself() -> str:
    """Return this process's user and machine as text, for errors."""
    import getpass  # noqa: PLC0415
    import socket  # noqa: PLC0415

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user} on {socket.gethostname()}"


def new_mark() -> bytes:
    """Return the mark of a new store, with a unique name."""
    return json.dumps({"version": _VERSION, "name": token()}).encode()


def with_name(url: str, name: str) -> str:
    """Add the name of a store to *url*, unless the name is empty."""
    return f"{url}#mqtune-store={name}" if name else url


def split_name(url: str) -> tuple[str, str]:
    """Split a URL from ``with_name`` into the plain URL and the store's name, or an empty text."""
    named = _NAMED_URL.fullmatch(url)
    return (named["url"], named["name"]) if named else (url, "")


def is_same_store(url: str, other: str) -> bool:
    """Whether two URLs lead to the same store: they are equal, or have the same store's name."""
    name = split_name(url)[1]
    return url == other or bool(name and name == split_name(other)[1])


def checked_name(mark: bytes | None, expected: str, place: str) -> str:
    """Return the name in a store's mark, after checking it.

    Args:
        mark: the content of the mark at *place*, or None if it is missing.
        expected: the name that the store must have; empty for any.

    Raises:
        StoreUnavailable: the store is missing, or is another one.
        CheckpointVersionError: a later version of mqtune made the store.
    """
    share = (
        "every machine must reach the same store under the same name: mount the shared folder there, or use a store "
        "that all machines reach, such as s3://…"
    )
    if mark is None:
        raise StoreUnavailable(f"{myself()} finds no checkpoint store at {place}, which the driver made; {share}")
    try:
        read = json.loads(mark)
        version, name = read["version"], read["name"]
    except (ValueError, TypeError, KeyError):
        raise StoreUnavailable(
            f"{myself()} can't read {MARK} of the checkpoint store at {place}, which has {mark[:100]!r}; remove that "
            "store or use another place"
        ) from None
    if not is_version(version, _VERSION):
        raise CheckpointVersionError(
            f"the checkpoint store at {place} has version {version!r}; this mqtune reads version {_VERSION}: upgrade it"
        )
    if expected and name != expected:
        raise StoreUnavailable(
            f"{myself()} finds another checkpoint store at {place} ({name}) than the experiment's ({expected}); {share}"
        )
    return str(name)
