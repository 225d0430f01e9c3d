"""The contract of a checkpoint store, and the mark by which two machines know that they reach the same one."""

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

#: After how many seconds without a change unfinished files count as left by a crash: more than any save takes.
SWEEP_AFTER_S: Final = 86_400.0

#: Ids become names of folders and objects, so they have only characters that every file system and object store accepts.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
#: The name of the file with a store's mark.
MARK: Final = "store.json"
_VERSION: Final = 1
#: A URL that identifies one store, and no other one at the same place.
_NAMED_URL: Final = re.compile(r"(?P<url>.*)#mqtune-store=(?P<name>[0-9a-f]+)", re.DOTALL)


_SECRET: Final = re.compile(r"(?<=://)[^/@]*@")
#: In place of a broker's id: the experiment is in the folder of a machine alone, or the driver may not know that id.
ARCHIVE: Final = "archive"
UNKNOWN: Final = "unknown"


class Tenant(NamedTuple):
    """An experiment that keeps its checkpoints in a store, and the broker that has or had it.

    Attributes:
        broker: the id that the broker keeps in its data; a copy of the data has it too.
        experiment: the experiment's name.
        run: the id of the broker's process, which no copy has; empty if it is not known.
        place: the broker's address; empty if it is not known.
    """

    broker: str
    experiment: str
    run: str = ""
    place: str = ""

    @property
    def file_name(self) -> str:
        """The name of its mark in a store: a broker and its copy have marks of their own."""
        place = f".{hashlib.sha256(self.place.encode()).hexdigest()[:8]}" if self.place else ""
        return f"{self.broker}{place}.json"

    def is_same(self, other: Tenant) -> bool:
        """Whether both certainly are one experiment on one broker.

        A broker that was restarted under another address is not recognized: it could be a copy.
        """
        if self[:2] != other[:2]:
            return False
        is_same_process = (self.run, self.place) == (other.run, other.place) or (self.run and self.run == other.run)
        return bool(is_same_process) or _are_one_place(self.place, other.place)

    def encode(self) -> bytes:
        """Return its mark in a store."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, mark: bytes) -> Tenant:
        """Return whose mark it is; UNKNOWN if it can't be read."""
        try:
            read = json.loads(mark)
            return cls(
                *(str(read[name]) for name in cls._fields[:2]), *(str(read.get(name, "")) for name in cls._fields[2:])
            )
        except (ValueError, TypeError, KeyError):
            return cls(UNKNOWN, "")


def _are_one_place(first: str, second: str) -> bool:
    """Whether two addresses lead to one broker: their names are equal, and their numbers are where both are known."""
    (name, _, numbers), (other_name, _, other_numbers) = first.partition(" "), second.partition(" ")
    return name == other_name != "" and (not numbers or not other_numbers or numbers == other_numbers)


class CheckpointStore(ABC):
    """Holds the checkpoints that are folders; each process of an experiment opens its own store object for the same place.

    **A checkpoint that exists is complete.** It is written aside and made visible in one step, and is on disk when ``save``
    returns. A crash before leaves files that are never taken for a checkpoint, and that ``sweep`` removes. A checkpoint never
    changes. One without any file is valid: it has counters.

    **Threads and processes.** Any number of processes may use one place at once, and several threads one store object. A
    ``fetch`` during a ``delete`` returns the whole checkpoint or raises CheckpointGone.

    **Errors.** Every method raises StoreUnavailable, with the place and the reason, when the store can't be reached, read
    or written, or is full; and ConfigurationError for an id that can't be a name.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL by which ``open_store`` opens this store on any machine.

        After ``create`` or ``check`` it should also identify the store that was found, so that ``check`` on another machine
        notices another folder under the same name.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return the place for messages and logs, without secrets."""

    @abstractmethod
    def create(self) -> None:
        """Make the store unless it exists, and ``check`` it; the driver calls this before anything is saved."""

    @abstractmethod
    def check(self) -> None:
        """Check that this machine reaches the store that ``create`` made, and can write to it; each worker calls this.

        Raises:
            StoreUnavailable: it can't; the message names the user, the machine, the place, the reason and the remedy.
        """

    @abstractmethod
    def save(self, id: CheckpointId, source: Path, counters: Counters) -> int:  # noqa: A002
        """Save the folder *source* as checkpoint *id*, and return how many bytes its files have.

        Nested and empty folders, empty files, any UTF-8 name and the owner's permission to execute are kept; times and
        owners are not. A link counts as the file that it points to, which must be inside *source*. *source* stays as it
        is, unless it came from ``staging``: then it may be gone. After an error, or if the process is told to end
        meanwhile, there is no such checkpoint. Saving the same content again is a no-op.

        Args:
            id: the checkpoint's name for ever.
            source: a folder that nothing writes to meanwhile.
            counters: numbers or strings by name, kept with the checkpoint.

        Raises:
            CheckpointExists: *id* exists with another content.
            ConfigurationError: *source* is not a folder, or has a file that can't be saved; or a counter is neither a number
                nor a string.
        """

    @abstractmethod
    def fetch(self, id: CheckpointId, target: Path) -> Counters:  # noqa: A002
        """Copy checkpoint *id* into the new folder *target*, and return its counters.

        Sizes and hashes are checked on the way. *target* appears when it is complete, and not after an error.

        Raises:
            CheckpointGone: there is no *id*.
            CheckpointBroken: its files are not those that were saved.
            CheckpointVersionError: a later version of mqtune saved it.
            ConfigurationError: *target* exists already.
        """

    @abstractmethod
    def exists(self, id: CheckpointId) -> bool:  # noqa: A002
        """Whether a checkpoint exists; its files are not checked."""

    @abstractmethod
    def ids(self) -> list[CheckpointId]:
        """Return the ids of all checkpoints, sorted."""

    @abstractmethod
    def delete(self, id: CheckpointId) -> None:  # noqa: A002
        """Delete a checkpoint in one step: it is gone or whole. Deleting a missing checkpoint is a no-op."""

    @abstractmethod
    def sweep(self, older_than_s: float = SWEEP_AFTER_S) -> int:
        """Remove the unfinished files that crashes have left, and return how many there were; checkpoints stay.

        Files that changed within the last *older_than_s* seconds, by the store's clock, may belong to a save in progress.
        """

    # What ``mqtune delete --unused`` asks. A store that leaves these out is never collected.

    def claim(self, tenant: Tenant) -> None:
        """Note that an experiment has its checkpoints here, once for each broker."""

    def release(self, tenant: Tenant) -> None:
        """Note that it has them no more; a no-op when it had none."""

    def tenants(self) -> list[Tenant]:
        """Return who has checkpoints here, as far as that was noted."""
        return []

    def folders(self) -> list[str]:
        """Return the names of what is directly below the store's place; below one that has no store, each may be a store."""
        return []

    def idle_s(self) -> float:
        """Return how long ago a checkpoint was saved or a tenant noted, by the store's clock; 0 if that is not known."""
        return 0.0

    def remove(self) -> None:
        """Delete all checkpoints, and what else there is of the store; files that are not the store's stay."""
        for each in self.ids():
            self.delete(each)

    def staging(self) -> Path:
        """Return a new empty folder to write a checkpoint into, which ``save`` may move instead of copying.

        The caller removes it if it still exists after ``save``; ``sweep`` does if it is inside the store.
        """
        import tempfile  # noqa: PLC0415 - slow to import, and most trials don't need it

        return Path(tempfile.mkdtemp(prefix="mqtune-checkpoint-"))

    def copy(self, id: CheckpointId, new_id: CheckpointId) -> int:  # noqa: A002
        """Save the content of checkpoint *id* as *new_id* too, and return how many bytes its files have.

        Raises:
            CheckpointGone: there is no *id*.
            CheckpointBroken: its files are not those that were saved.
            CheckpointExists: *new_id* exists with another content.
        """
        check_id(new_id)
        folder = self.staging()
        try:
            # fetch makes the folder itself.
            folder.rmdir()
            counters = self.fetch(id, folder)
            return self.save(new_id, folder, counters)
        finally:
            remove_tree(folder)


def check_id(id: str) -> None:  # noqa: A002
    """Raise unless *id* is safe as a name.

    Raises:
        ConfigurationError: it is empty, too long, or has characters with a meaning in a path or URL.
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
    """Return the error that a checkpoint is not in the store at *place*."""
    return CheckpointGone(
        f"checkpoint {id} is not in {place}: it was deleted, or never saved there; start from another one, or have more kept"
    )


def without_secrets(url: str) -> str:
    """Return a URL without user name and password, so that it can be shown."""
    return _SECRET.sub("…@", url)


def myself() -> str:
    """Return the user and the machine, for an error."""
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
    """Return *url* with the name of a store added; unchanged if the name is empty."""
    return f"{url}#mqtune-store={name}" if name else url


def split_name(url: str) -> tuple[str, str]:
    """Split a URL into the place and the name of the store; the name is empty if the URL has none."""
    named = _NAMED_URL.fullmatch(url)
    return (named["url"], named["name"]) if named else (url, "")


def is_same_store(url: str, other: str) -> bool:
    """Return whether two URLs name one store: by its mark if both have one, wherever it is now."""
    name = split_name(url)[1]
    return url == other or bool(name and name == split_name(other)[1])


def checked_name(mark: bytes | None, expected: str, place: str) -> str:
    """Return the name of the store whose mark was found at *place*.

    Args:
        mark: the content of the mark, or None if there is none.
        expected: the name that the store must have; empty for any.
        place: the place, for an error.

    Raises:
        StoreUnavailable: there is no store, or another one.
        CheckpointVersionError: a later version of mqtune made it.
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
    if not is_version(version, _VERSION):
        raise CheckpointVersionError(
            f"the checkpoint store at {place} has version {version!r}; this mqtune reads version {_VERSION}: upgrade it"
        )
    if expected and name != expected:
        raise StoreUnavailable(
            f"{myself()} finds another checkpoint store at {place} ({name}) than the experiment's ({expected}); {share}"
        )
    return str(name)
