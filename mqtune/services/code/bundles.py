"""The bundles unpacked by this worker, each in a folder named by its hash."""

from __future__ import annotations

import reprlib
import shutil
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from mqtune.core.errors import CodeRefused
from mqtune.journal import CodeExchange
from mqtune.trainable import KEY_VARIABLE, Bundle, CodeKeys, is_digest, is_path, is_signed, unpack
from mqtune.worker import ExperimentHere
from mqtune.worker.ports import ProgramPlace, WorkerService

#: At least this many unpacked bundles are kept, the most recently used ones.
KEPT: Final = 8


class Brought(NamedTuple):
    """The folders of an unpacked bundle.

    Attributes:
        top: the folder of the bundle.
        code_root: the code root in it.
        cwd: the working directory of its trials; None for the worker's own.
    """

    top: Path
    code_root: Path
    cwd: Path | None


class Bundles(WorkerService):
    """Fetches and verifies bundles, and unpacks each once in a worker's life. Thread-safe.

    It reuses nothing of an earlier worker: a crash or a full disk may have left a partial bundle.

    Args:
        folder: the worker's own folder for unpacked bundles.
        key: the keys that sign code of drivers, as ``CodeKeys`` reads them. Empty for a worker that accepts no code.
        exchange: returns the code exchange of an experiment, by name.
        in_use: returns the code roots in use.
        kept: number of unused bundles that stay.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        exchange: Callable[[str], CodeExchange],
        in_use: Callable[[], set[Path]],
        *,
        kept: int = KEPT,
    ) -> None:
        self._folder = folder
        self._keys = CodeKeys(key) if key else None
        self._exchange = exchange
        self._in_use = in_use
        self._kept = kept
        #: Digests of the unpacked bundles, least recently used first.
        self._unpacked: dict[str, None] = {}
        #: Experiments whose bundle has a valid signature.
        self._signed = weakref.WeakSet[ExperimentHere]()
        self._lock = threading.Lock()

    def program(self, experiment: ExperimentHere) -> ProgramPlace | None:
        """Return the place of the code that the experiment's driver has sent, or None without any."""
        bundle = self.of(experiment)
        return None if bundle is None else ProgramPlace(bundle.code_root, bundle.cwd, {"bundle": bundle.top.name})

    def of(self, here: ExperimentHere) -> Brought | None:
        """Return the place of the code that the experiment's driver has sent, or None without any.

        Raises:
            CodeRefused: this worker accepts no code from drivers, or refuses this bundle.
            OSError: it can't be unpacked.
        """
        definition = here.definition
        digest, root = str(definition.get("bundle") or ""), str(definition.get("bundle_root", "."))
        if not digest:
            return None
        if self._keys is None:
            raise CodeRefused(
                "it runs only code that is on its machine; start it with --accept-code to accept code from drivers"
            )
        if not is_digest(digest) or not (root == "." or is_path(root)):
            raise CodeRefused(
                f"the experiment's bundle is malformed: {reprlib.repr([digest, root])}; no driver of mqtune sends that"
            )
        with self._lock:
            top = self._folder / digest
            if here not in self._signed:
                self._check(self._exchange(here.name), digest, self._keys.of(here.name))
                self._signed.add(here)
            # Most recently used last.
            self._unpacked.pop(digest, None)
            self._unpacked[digest] = None
            if not top.is_dir():
                self._bring(self._exchange(here.name), digest, top)
            self._trim()
        return Brought(top, top / root, top if definition.get("bundle_is_cwd", True) else None)

    def _check(self, exchange: CodeExchange, digest: str, key: str) -> None:
        signature = exchange.signature(digest)
        if signature is None or not is_signed(key, digest, signature):
            raise CodeRefused(
                f"bundle {digest[:12]} is not signed with this worker's {KEY_VARIABLE}; the driver needs the same key"
            )

    def _bring(self, exchange: CodeExchange, digest: str, top: Path) -> None:
        bundle = exchange.bundle(digest)
        if bundle is None:
            raise CodeRefused(
                f"bundle {digest[:12]} is not on the server any more; its driver brings it when it starts again"
            )
        self._unpack(bundle, top)

    def _unpack(self, bundle: Bundle, top: Path) -> None:
        draft = top.with_name(f".{top.name}")
        for folder in (draft, top):
            shutil.rmtree(folder, ignore_errors=True)
        try:
            unpack(bundle.files(), draft)
            draft.rename(top)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def _trim(self) -> None:
        used = self._in_use()
        for digest in list(self._unpacked)[: -self._kept or None]:
            top = self._folder / digest
            if not any(top in (root, *root.parents) for root in used):
                del self._unpacked[digest]
                shutil.rmtree(top, ignore_errors=True)

    def close(self) -> None:
        """Delete all unpacked bundles."""
        shutil.rmtree(self._folder, ignore_errors=True)
