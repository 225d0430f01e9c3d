"""A checkpoint store: a folder, under URLs of its own, ``shelf:///path``.

The package's entry point names ``Shelf`` for the scheme ``shelf``, so that ``Checkpoints(store="shelf:///shared")``
finds it on every machine where the package is installed.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from mqtune.checkpoints.directory import DirectoryStore
from mqtune.checkpoints.store import split_name


class Shelf(DirectoryStore):
    """Keeps checkpoints as mqtune's own folders do.

    A store of another kind derives from ``mqtune.checkpoints.CheckpointStore``.
    """

    def __init__(self, url: str) -> None:
        place, name = split_name(url)
        super().__init__(unquote(urlsplit(place).path), name=name)

    @property
    def url(self) -> str:
        return super().url.replace("file://", "shelf://", 1)
