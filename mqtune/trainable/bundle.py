"""Bundles: a project's files for workers, identified by a hash of names and contents.

The hash does not depend on the machine or the time. Unpacking trusts nothing: a bundle must have the requested hash,
its paths stay below the folder, and it has plain files only.
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

#: Maximum bytes of a bundle's files. Redis keeps it in memory and sends it to each worker.
MOST_BYTES: Final = 32 << 20
#: Maximum number of files. A worker can unpack that many within seconds.
MOST_FILES: Final = 10_000
#: Minimum length of a key.
FEWEST_KEY_CHARS: Final = 16
#: Environment variable with the key, on the driver's machine and on workers.
KEY_VARIABLE: Final = "MQTUNE_CODE_KEY"
#: Tag of slots whose worker accepts code. A trial with a bundle requires it.
ACCEPTS_TAG: Final = "accepts-code"
_VERSION: Final = 1
#: Longer than any valid path.
_LONGEST_NAME: Final = 4_096
#: A pattern of experiment names, an equals sign, and a key. A base64 key may end with the sign, and doesn't match then.
_OF_PATTERN: Final = re.compile(r"([A-Za-z0-9._*-]{1,100})=([^=].*)")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
#: Maximum bytes of an unpacked bundle, including space for the names.
_MOST_PACKED: Final = MOST_BYTES + (MOST_FILES << 10)


class File(NamedTuple):
    """A file of a bundle."""

    content: bytes
    is_executable: bool = False


class Bundle(NamedTuple):
    """A packed bundle. ``digest`` is the SHA-256 of its content before compression, in hex."""

    digest: str
    data: bytes

    @classmethod
    def of(cls, files: Mapping[str, File]) -> Bundle:
        """Pack files, given by slash-separated paths."""
        plain = encode_value([_VERSION, [[name, *files[name]] for name in sorted(files)]])
        return cls(hashlib.sha256(plain).hexdigest(), zlib.compress(plain))

    def files(self) -> dict[str, File]:
        """Return the files by path.

        Raises:
            CodeRefused: the digest does not match, or the content is invalid.
        """
        unpacker = zlib.decompressobj()
        try:
            plain = unpacker.decompress(self.data, _MOST_PACKED)
        except zlib.error as error:
            raise CodeRefused(f"bundle {self.digest[:12]} is damaged: {error}") from None
        if not unpacker.eof or hashlib.sha256(plain).hexdigest() != self.digest:
            raise CodeRefused(f"bundle {self.digest[:12]} does not match its hash: it is damaged or was changed")
        try:
            version, entries = decode_value(plain)
            files = {name: File(content, is_executable) for name, content, is_executable in entries}
        except (ValueError, TypeError) as error:
            raise CodeRefused(f"bundle {self.digest[:12]} can't be read: {error}") from None
        _check_files(self.digest, version, files)
        return files


def _check_files(digest: str, version: object, files: Mapping[str, File]) -> None:
    if not is_version(version, _VERSION):
        raise CodeRefused(
            f"bundle {digest[:12]} has version {version!r}; this mqtune reads version {_VERSION}: upgrade mqtune here"
        )
    types = bytes, bool
    bad = [name for name, file in files.items() if not is_path(name) or tuple(map(type, file)) != types]
    if bad:
        raise CodeRefused(
            f"bundle {digest[:12]} has {reprlib.repr(bad[0])}, which is not a relative path of a plain file"
        )
    if len(files) > MOST_FILES or sum(len(file.content) for file in files.values()) > MOST_BYTES:
        raise CodeRefused(f"bundle {digest[:12]} has more than {MOST_FILES:,} files, or {MOST_BYTES >> 20} MiB")


def is_digest(name: object) -> bool:
    """Whether a name is a well-formed digest of a bundle."""
    return isinstance(name, str) and _DIGEST.fullmatch(name) is not None


def is_path(name: object) -> bool:
    """Whether a name is a valid path of a file in a bundle: normalized, and below the folder."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or "\0" in name or "\\" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and name not in ("", ".") and str(path) == name


def unpack(files: Mapping[str, File], folder: Path) -> None:
    """Write files into a new folder.

    Raises:
        OSError: the folder exists already, a path is both a file and a folder, or the disk is full.
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
    """Check that a key for code is set and long enough.

    Args:
        key: the key; empty if it is not set.
        wanted_by: the option that needs the key, for the error.

    Raises:
        ConfigurationError: the key is missing or too short.
    """
    if len(key) < FEWEST_KEY_CHARS:
        problem = f"has {len(key)} letters, and needs {FEWEST_KEY_CHARS}" if key else "is not set"
        raise ConfigurationError(
            f"{wanted_by} needs {KEY_VARIABLE}, the key by which workers recognise drivers that may send code; it "
            f"{problem}: set it to "
            "the same value for drivers and workers, for example to the output of `openssl rand -hex 32`"
        )


class CodeKeys:
    """A worker's keys for code: one for all experiments, or one for each name pattern.

    ``team-a-*=KEY,team-b-*=KEY`` has a key for each pattern. The first pattern that matches an experiment's name
    decides. Any other text is one key for all experiments.

    Args:
        text: value of ``KEY_VARIABLE``; empty for no key.
    """

    def __init__(self, text: str) -> None:
        parts = [_OF_PATTERN.fullmatch(part.strip()) for part in text.split(",")]
        keys = {part[1]: part[2] for part in parts if part is not None}
        self._is_mixed = 0 < len(keys) < len(parts)
        self._keys = keys if len(keys) == len(parts) else {"*": text}

    def check(self, wanted_by: str) -> None:
        """Check that keys for code are set.

        Raises:
            ConfigurationError: no key is set, a key is too short, or only some keys have a pattern.
        """
        if self._is_mixed:
            raise ConfigurationError(
                f"{wanted_by} needs {KEY_VARIABLE}, in which some keys have no pattern of names, or two have the same: "
                "give one key, or 'team-a-*=KEY,team-b-*=KEY'"
            )
        for key in self._keys.values():
            check_key(key, wanted_by)

    def of(self, name: str) -> str:
        """Return the key for the experiment or submission of this name.

        Raises:
            CodeRefused: there is no key for this name.
        """
        for pattern, key in self._keys.items():
            if key and fnmatchcase(name, pattern):
                return key
        raise CodeRefused(
            f"this worker's {KEY_VARIABLE} has no key for {name!r}; it has keys for {', '.join(self._keys)}"
        )


def signature(key: str, digest: str, signed: str = "bundle") -> str:
    """Return the signature of a bundle or submission, which proves that its sender has the key.

    Args:
        digest: hash of the bundle or submission.
        signed: the kind of the signed thing, such as "bundle".
    """
    return hmac.new(key.encode(), f"mqtune {signed} {digest}".encode(), hashlib.sha256).hexdigest()


def is_signed(key: str, digest: str, sent: str, signed: str = "bundle") -> bool:
    """Whether the signature *sent* was made with this key."""
    return hmac.compare_digest(signature(key, digest, signed).encode(), sent.encode())


def changed_in(before: Mapping[str, File], now: Mapping[str, File], same: Iterable[str] = ()) -> list[str]:
    """Return the names of files that only one of two bundles has, or that differ.

    Files in *same* are left out.
    """
    differing = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return sorted(differing - set(same))
