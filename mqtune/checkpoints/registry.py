"""Opens checkpoint stores: folders, URLs of installed packages, and URLs of fsspec."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from mqtune.checkpoints.directory import DirectoryStore
from mqtune.checkpoints.store import CheckpointStore, check_id, is_id, myself, split_name, without_secrets
from mqtune.core.errors import ConfigurationError, MqtuneError, StoreUnavailable
from mqtune.core.machine import CHECKPOINTS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The group of entry points for stores in other packages. The name is a URL scheme. The object is a function that gets
#: the whole URL and returns a ``CheckpointStore``.
STORES: Final = "mqtune.checkpoint_stores"
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)(?P<separator>://|::)")
#: The schemes of folders. No package can replace them.
_FOLDERS: Final = ("file", "local")


def open_store(url: str) -> CheckpointStore:
    """Return the checkpoint store at *url*, without making, reading or writing it.

    A path or ``file://…`` is a folder. If an installed package has an entry point for the scheme, in the group
    ``mqtune.checkpoint_stores``, that package opens the URL. Any other URL is opened with fsspec, whose credentials
    come from its own settings or those of the protocol's driver.

    Raises:
        ConfigurationError: the URL is empty, nothing here opens it, or two packages do.
        StoreUnavailable: fsspec, the protocol's driver, or the store's package does not work here.
    """
    place, name = split_name(url)
    _check_place(place)
    if (path := local_path(place)) is not None:
        return DirectoryStore(path, name=name)
    if (store := _installed(place)) is not None:
        return _open_installed(store, url)
    from mqtune.checkpoints.remote import FsspecStore, protocols  # noqa: PLC0415 - it imports fsspec

    scheme = _scheme_of(place)
    if (known := protocols()) and scheme not in known:
        raise ConfigurationError(
            f"the place for checkpoints is {without_secrets(place)!r}, but nothing installed for {myself()} opens "
            f"{scheme}:// URLs; known are {', '.join(schemes())}. Install, on every machine of the experiment, a "
            f"package that has an entry point {scheme!r} in the group {STORES!r}, or name another place"
        )
    return FsspecStore(place, name=name)


def store_beside(url: str, folder: Path) -> str:
    """Return the URL of an experiment's store. It may have moved with the experiment's *folder*.

    If *folder* has a store with the same mark as *url*, return that store's URL. Otherwise return *url*.
    """
    place, name = split_name(url)
    beside = folder / CHECKPOINTS
    if not name or local_path(place) in (None, str(beside)):
        return url
    store = DirectoryStore(beside, name=name)
    return store.url if store.is_there() else url


def experiment_url(place: str | os.PathLike[str], experiment: str) -> str:
    """Return the URL of an experiment's own store below *place*, a folder or URL.

    Each experiment needs its own store, because ids of checkpoints are unique only in one experiment. A relative path
    becomes absolute. The experiment's name is appended to a URL's path, before a query (``?…``).

    Raises:
        ConfigurationError: *place* is empty, or *experiment* is not a valid name.
    """
    check_id(experiment)
    base = os.fspath(place)
    _check_place(base)
    if (path := local_path(base)) is not None:
        return f"file://{quote(os.path.join(os.path.abspath(os.path.expanduser(path)), experiment))}"
    base, mark, query = base.partition("?")
    below = f"{base}{experiment}" if base.endswith("://") else f"{base.rstrip('/')}/{experiment}"
    return f"{below}{mark}{query}"


def stores_below(place: str | os.PathLike[str]) -> list[CheckpointStore]:
    """Return possible stores of experiments: all folders directly below *place*, as stores.

    *place* is a folder or URL that users give as ``Checkpoints(store=…)``.

    Raises:
        ConfigurationError, StoreUnavailable: *place* can't be opened or listed.
    """
    return [open_store(experiment_url(place, name)) for name in open_store(os.fspath(place)).folders() if is_id(name)]


def schemes() -> list[str]:
    """Return the known URL schemes, sorted: mqtune's, fsspec's and those of installed packages."""
    from mqtune.checkpoints.remote import protocols  # noqa: PLC0415 - it imports fsspec

    return sorted({*_FOLDERS, *(entry.name.lower() for entry in _entry_points()), *protocols()})


def _check_place(place: str) -> None:
    if not place.strip():
        raise ConfigurationError(
            "the place for checkpoints is empty; name a folder, or a URL such as s3://bucket/folder"
        )


def _scheme_of(place: str) -> str:
    matched = _SCHEME.match(place)
    return matched["scheme"].lower() if matched is not None else ""


def _entry_points() -> list[EntryPoint]:
    # Imported here, because it is slow to import.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return list(entry_points(group=STORES))


def _installed(place: str) -> EntryPoint | None:
    """Return the entry point for the scheme of a URL, or None."""
    scheme = _scheme_of(place)
    # The same package may be found twice on the path.
    by_value = {entry.value: entry for entry in _entry_points() if entry.name.lower() == scheme}
    if len(by_value) > 1:
        raise ConfigurationError(
            f"{scheme}:// URLs are opened by more than one installed package: "
            f"{', '.join(sorted(_package_of(entry) for entry in by_value.values()))}; uninstall all but one"
        )
    return next(iter(by_value.values()), None)


def _open_installed(entry: EntryPoint, url: str) -> CheckpointStore:
    try:
        store: object = entry.load()(url)
    except MqtuneError:
        raise
    except Exception as error:
        raise StoreUnavailable(
            f"{myself()} can't open the checkpoint store {without_secrets(url)} with {_package_of(entry)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(store, CheckpointStore):
        raise ConfigurationError(
            f"{_package_of(entry)} opened {without_secrets(url)} as {type(store).__name__}; an entry point in "
            f"{STORES!r} must return a mqtune.checkpoints.CheckpointStore"
        )
    return store


def _package_of(entry: EntryPoint) -> str:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "a package without a name"
    return f"{package} ({entry.value})"


def local_path(place: str) -> str | None:
    """Return the folder of a path or file URL. None for another kind of URL."""
    matched = _SCHEME.match(place)
    if matched is None:
        return place
    if matched["scheme"].lower() not in _FOLDERS or "::" in place:
        return None
    path = place[matched.end() :].removeprefix("localhost")
    if not path.startswith("/"):
        raise ConfigurationError(
            f"the place for checkpoints is {place!r}, which is not an absolute path: write file:///folder, with three "
            "slashes"
        )
    return unquote(path)
