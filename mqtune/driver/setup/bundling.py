"""Keeps an experiment's code bundles, and puts the current one where workers fetch it."""

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
    """Past and current bundles of an experiment, in its folder on this machine."""

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
    """Return the requirements of an experiment's slots: *resources*, and accepting bundles."""
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
    """Put an experiment's bundle where its workers fetch it.

    Returns a function that repeats this after the server has lost the bundle.

    Args:
        bundle: its bundle, if this machine has it. A bundle from the server is never signed.
        key: the workers' key, or empty.
        is_own: whether this driver starts the worker, with the key.
        before: digest of the workers' previous bundle, for attempts that they have claimed already.

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
