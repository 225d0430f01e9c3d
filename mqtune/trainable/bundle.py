"""A bundle: the files of a project on their way to workers, named by the hash of their names and contents.

Neither the machine nor the time of packing changes the hash. Who unpacks a bundle trusts nothing in it: it must have the hash
that was asked for, names lead nowhere else, and nothing but plain files comes out.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import reprlib
import zlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from mqtune.core.codec import decode_value, encode_value, is_version
from mqtune.core.errors import CodeRefused, ConfigurationError

#: The most bytes that the files of a bundle have together. Redis holds it in memory as long as the experiment and sends it to each
#: worker; a large project's code has a tenth of it, and data belongs where workers can read it.
MOST_BYTES: Final = 32 << 20
#: The most files: what a worker unpacks within a second or two, also on a network disk.
MOST_FILES: Final = 10_000
#: The fewest letters of a key: a short one could be guessed from one signature.
FEWEST_KEY_CHARS: Final = 16
#: The environment variable with the key, on the driver's machine and on workers.
KEY_VARIABLE: Final = "MQTUNE_CODE_KEY"
#: The tag of slots whose worker takes code; a trial with a bundle asks for it.
ACCEPTS_TAG: Final = "accepts-code"
_VERSION: Final = 1
#: Longer than any path that a system accepts.
_LONGEST_NAME: Final = 4_096
#: A pattern of experiments' names, and the key for them. What follows the sign in a key by base64 is empty.
_OF_PATTERN: Final = re.compile(r"([A-Za-z0-9._*-]{1,100})=([^=].*)")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
#: Room for the names, beside the contents.
_MOST_PACKED: Final = MOST_BYTES + (MOST_FILES << 10)


class File(NamedTuple):
    """A file of a bundle."""

    content: bytes
    is_executable: bool = False


class Bundle(NamedTuple):
    """Files as they travel: ``digest`` is the SHA-256, in hex, of what ``data`` has compressed."""

    digest: str
    data: bytes

    @classmethod
    def of(cls, files: Mapping[str, File]) -> Bundle:
        """Return the bundle of files by their paths, whose parts are separated by slashes."""
        plain = encode_value([_VERSION, [[name, *files[name]] for name in sorted(files)]])
        return cls(hashlib.sha256(plain).hexdigest(), zlib.compress(plain))

    def files(self) -> dict[str, File]:
        """Return the files by their paths.

        Raises:
            CodeRefused: they are not those that the digest names, or something is wrong with them.
        """
        unpacker = zlib.decompressobj()
        try:
            plain = unpacker.decompress(self.data, _MOST_PACKED)
        except zlib.error as error:
            raise CodeRefused(f"bundle {self.digest[:12]} is damaged: {error}") from None
        if not unpacker.eof or hashlib.sha256(plain).hexdigest() != self.digest:
            raise CodeRefused(f"bundle {self.digest[:12]} has other content than its name says")
        try:
            version, entries = decode_value(plain)
            found = {name: File(content, is_executable) for name, content, is_executable in entries}
        except (ValueError, TypeError) as error:
            raise CodeRefused(f"bundle {self.digest[:12]} can't be read: {error}") from None
        _check(self.digest, version, found)
        return found


def _check(digest: str, version: object, files: Mapping[str, File]) -> None:
    if not is_version(version, _VERSION):
        raise CodeRefused(f"bundle {digest[:12]} has version {version!r}; this mqtune reads {_VERSION}: upgrade it")
    types = bytes, bool
    bad = [name for name, file in files.items() if not is_path(name) or tuple(map(type, file)) != types]
    if bad:
        raise CodeRefused(f"bundle {digest[:12]} has {reprlib.repr(bad[0])}, which is not a file below a folder")
    if len(files) > MOST_FILES or sum(len(file.content) for file in files.values()) > MOST_BYTES:
        raise CodeRefused(f"bundle {digest[:12]} has more than {MOST_FILES:,} files, or {MOST_BYTES >> 20} MiB")


def is_digest(name: object) -> bool:
    """Whether a name can be that of a bundle."""
    return isinstance(name, str) and _DIGEST.fullmatch(name) is not None


def is_path(name: object) -> bool:
    """Whether a name is a path that stays below its folder, in the one way in which that can be written."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or "\0" in name or "\\" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and name not in ("", ".") and str(path) == name


def unpack(files: Mapping[str, File], folder: Path) -> None:
    """Write files into a folder that is made for them.

    Raises:
        OSError: the folder exists, two of them can't both be there, or there is no room.
    """
    folder.mkdir(parents=True)
    for name, (content, is_executable) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)
        if is_executable:
            path.chmod(0o755)


def check_key(key: str, wanted_by: str) -> None:
    """Check that there is a key for code.

    Raises:
        ConfigurationError: there is none, or it is too short.
    """
    if len(key) < FEWEST_KEY_CHARS:
        has = f"has {len(key)} letters, and needs {FEWEST_KEY_CHARS}" if key else "is not set"
        raise ConfigurationError(
            f"{wanted_by} needs {KEY_VARIABLE}, by which workers know who may bring code, and that {has}: set it to the same "
            "on both sides, such as what `openssl rand -hex 32` prints"
        )


class CodeKeys:
    """The keys by which a worker knows brought code: one for all experiments, or one for each pattern of their names.

    ``team-a-*=KEY,team-b-*=KEY`` has a key for each pattern, of which the first that fits an experiment's name counts. Any other text is
    one key for all.

    Args:
        text: as ``KEY_VARIABLE`` has it; empty for no key.
    """

    def __init__(self, text: str) -> None:
        parts = [_OF_PATTERN.fullmatch(part.strip()) for part in text.split(",")]
        found = {part[1]: part[2] for part in parts if part is not None}
        self._is_mixed = 0 < len(found) < len(parts)
        self._keys = found if len(found) == len(parts) else {"*": text}

    def check(self, wanted_by: str) -> None:
        """Check that there is a key for code.

        Raises:
            ConfigurationError: no key is set, a key is too short, or some of several lack a pattern, or share one.
        """
        if self._is_mixed:
            raise ConfigurationError(
                f"{wanted_by} needs {KEY_VARIABLE}, where some keys lack a pattern of names, or share one: give one key, or 'team-a-*=KEY,team-b-*=KEY'"
            )
        for key in self._keys.values():
            check_key(key, wanted_by)

    def of(self, name: str) -> str:
        """Return the key for the experiment, or the submission, of this name.

        Raises:
            CodeRefused: no key is for this name.
        """
        for pattern, key in self._keys.items():
            if key and fnmatchcase(name, pattern):
                return key
        raise CodeRefused(
            f"this worker's {KEY_VARIABLE} has no key for {name!r}; it has keys for {', '.join(self._keys)}"
        )


def signature(key: str, digest: str, what: str = "bundle") -> str:
    """Return what proves that somebody who has the key brings the bundle, or the submission, of this digest."""
    return hmac.new(key.encode(), f"mqtune {what} {digest}".encode(), hashlib.sha256).hexdigest()


def is_signed(key: str, digest: str, found: str, what: str = "bundle") -> bool:
    """Whether a signature is that of this key."""
    return hmac.compare_digest(signature(key, digest, what).encode(), found.encode())


def changed_in(before: Mapping[str, File], now: Mapping[str, File], same: Iterable[str] = ()) -> list[str]:
    """Return the names of files that only one of two bundles has, or that differ, except for *same*."""
    differing = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return sorted(differing - set(same))
