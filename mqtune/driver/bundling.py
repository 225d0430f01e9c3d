"""Keeps the bundles of an experiment, and leaves the current one where workers fetch it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import replace_file
from mqtune.core.resources import Resources
from mqtune.journal.code import CodeExchange
from mqtune.trainable.bundle import ACCEPTS_TAG, Bundle, check_key, is_digest, signature
from mqtune.trainable.frozen_code import CODE_FOLDER


class BundleFolder:
    """The bundles that an experiment has had, in its folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / CODE_FOLDER

    def find(self, digest: str) -> Bundle | None:
        """Return the bundle of a digest; None if it is not there."""
        try:
            return Bundle(digest, self._path(digest).read_bytes()) if is_digest(digest) else None
        except OSError:
            return None

    def keep(self, bundle: Bundle) -> None:
        """Keep a bundle, unless that can't be written."""
        if not self._path(bundle.digest).exists():
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                replace_file(self._path(bundle.digest), [bundle.data])

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest}.bundle"


def needed(resources: Resources, definition: Mapping[str, object]) -> Resources:
    """Return what a slot must offer that runs an experiment's trials."""
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
    """Leave an experiment's bundle where its workers fetch it.

    Returns what does so again, after the server has lost it.

    Args:
        definition: the experiment's.
        bundle: its bundle, where this machine has it: what somebody else has left on a server is never signed.
        exchange: takes it.
        key: the key that the workers have, or empty.
        is_own: whether its worker is started by this driver, with the key.
        before: the digest of the bundle that workers know of so far, for attempts that they have taken already.

    Raises:
        ConfigurationError: the bundle, or the key, is missing.
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
