"""Which store a place means: a folder, or any URL that fsspec knows."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import quote, unquote

from mqtune.checkpoints.directory import DirectoryStore
from mqtune.checkpoints.store import CheckpointStore, check_id, split_name
from mqtune.core.errors import ConfigurationError

__all__ = ["experiment_url", "open_store"]

_PROTOCOL: Final = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]*)(?:://|::)")


def open_store(url: str) -> CheckpointStore:
    """Return the store of checkpoints at *url*; nothing is made, read or written yet.

    A path or ``file://…`` is a folder. Any other URL is opened with fsspec, which has the credentials from its own
    settings or those of the protocol's driver.

    Raises:
        ConfigurationError: it is empty, or fsspec doesn't know such a URL.
        StoreUnavailable: fsspec, or the driver of that protocol, is not installed here.
    """
    place, name = split_name(url)
    if not place.strip():
        raise ConfigurationError(
            "the place for checkpoints is empty; name a folder, or a URL such as s3://bucket/folder"
        )
    if (path := _local_path(place)) is not None:
        return DirectoryStore(path, name=name)
    from mqtune.checkpoints.remote import FsspecStore  # noqa: PLC0415 - it imports fsspec

    return FsspecStore(place, name=name)


def experiment_url(place: str | os.PathLike[str], experiment: str) -> str:
    """Return the URL of one experiment's own store below *place*, a folder or URL: ids are unique in an experiment alone.

    A relative path becomes absolute, by this process's folder.

    Raises:
        ConfigurationError: *place* is empty, or *experiment* can't be a name in it.
    """
    check_id(experiment)
    base = os.fspath(place)
    if not base.strip():
        raise ConfigurationError(
            "the place for checkpoints is empty; name a folder, or a URL such as s3://bucket/folder"
        )
    if (path := _local_path(base)) is not None:
        return f"file://{quote(os.path.join(os.path.abspath(os.path.expanduser(path)), experiment))}"
    return f"{base.rstrip('/')}/{experiment}" if not base.endswith("://") else f"{base}{experiment}"


def _local_path(place: str) -> str | None:
    """Return the folder of this machine that a place is, or None for a URL of another kind."""
    found = _PROTOCOL.match(place)
    if found is None:
        return place
    if found["protocol"].lower() not in ("file", "local") or "::" in place:
        return None
    path = place[found.end() :].removeprefix("localhost")
    if not path.startswith("/"):
        raise ConfigurationError(
            f"the place for checkpoints is {place!r}, which names no absolute path: write file:///folder, with three slashes"
        )
    return unquote(path)
