"""The mark of a store: what tells two machines that a folder of one name is the same folder on both."""

from __future__ import annotations

import json
import re
from typing import Final

from mqtune.checkpoints.files import token
from mqtune.checkpoints.store import myself
from mqtune.core.errors import CheckpointVersionError, StoreUnavailable

__all__ = ["MARK", "checked_name", "new_mark", "split_name", "with_name"]

#: What a store's mark is called, in every store.
MARK: Final = "store.json"
_VERSION: Final = 1
#: Ends a URL that means one store and no other one that may be found there.
_NAMED_URL: Final = re.compile(r"(?P<url>.*)#mqtune-store=(?P<name>[0-9a-f]+)", re.DOTALL)


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
