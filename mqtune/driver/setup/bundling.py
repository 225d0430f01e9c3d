"""Stores an experiment's code bundles, and uploads the current one for its workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import replace_file
from mqtune.core.resources import Resources
from mqtune.journal.exchange.code import CodeExchange
from mqtune.trainable.bundle import ACCEPTS_TAG, Bundle, check_key, is_digest, signature
from mqtune.trainable.frozen_code import CODE_FOLDER


class BundleFolder:
    """Past and current code bundles of an experiment, as files in its local folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / CODE_FOLDER

    def find(self, digest: str) -> Bundle | None:
        """Return the bundle with a digest, or None if it is missing."""
        try:
            return Bundle(digest, self._path(digest).read_bytes()) if is_digest(digest) else None
        except OSError:
            return None

    def keep(self, bundle: Bundle) -> None:
        """Store a bundle. Write errors are ignored."""
        if not self._path(bundle.digest).exists():
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                replace_file(self._path(bundle.digest), [bundle.data])

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.bundle"


def needed(resources: Resources, definition: Mapping[str, object]) -> Resources:
    """Return *resources*, plus the tag of workers that accept code if there is a bundle."""
    return replace(resources, tags={*resources.tags, ACCEPTS_TAG}) if definition.get("bundle") else resources


def bring(
    definition: Mapping[str, object],
    bundle: Bundle | None,
    exchange: CodeExchange,
    key: str,
    *,
    is_own: bool,
    before: str = "",
) -> Callable[[], None]:
    """Sign an experiment's bundle and upload it for its workers.

    Nothing is uploaded if the experiment has no bundle, or if the server has a signed one and this machine lacks the
    bundle or the key.

    Args:
        definition: the experiment's definition, with the bundle's digest.
        bundle: the bundle, if this machine has it. A bundle from the server is never signed.
        exchange: the place on the server.
        key: the key with which bundles for the workers are signed, or empty.
        is_own: whether this driver starts the worker, and gives it the key.
        before: the digest of the previous bundle, for attempts that workers have claimed already.

    Returns:
        A function that repeats the upload, for use after the server has lost its data.

    Raises:
        ConfigurationError: the bundle or the key is missing.
    """
    digest = str(definition.get("bundle", ""))
    if not digest or (not is_own and not (bundle and key) and exchange.signature(digest) is not None):
        return lambda: None
    if bundle is None:
        raise ConfigurationError(
            f"the code that the experiment's workers run, bundle {digest[:12]}, is not on this machine: run its script "
            f"instead"
        )
    check_key(key, "Process(bundle=…)")
    put = partial(exchange.put, bundle, signature(key, digest), before=before)
    put()
    return put
