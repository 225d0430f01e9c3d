"""What a worker tells the processes that import an experiment's code: which files it consists of, and what they hold."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mqtune.trainable.experiment_code import resolve
from mqtune.trainable.frozen_code import CODE_FOLDER, encode_files
from mqtune.trainable.spec import TrainableSpec

__all__ = ["CodeManifests"]

logger = logging.getLogger(__name__)

#: The experiments whose manifests are remembered: more than run at once on a worker.
_REMEMBERED: Final = 64


class CodeManifests:
    """Writes each experiment's manifest, once, into its code folder below the log folder. Any thread may call it.

    Args:
        log_root: the worker's log folder.
        code_root: the folder below which the code is.
    """

    def __init__(self, log_root: Path, code_root: Path) -> None:
        self._log_root = log_root
        self._code_root = code_root
        #: The definition that an experiment's was made of, and where it is.
        self._known: dict[str, tuple[Mapping[str, Any], Path]] = {}

    def of(self, experiment: str, definition: Mapping[str, Any]) -> Path | None:
        """Return the manifest for the trials of an experiment with this definition; None when nothing is known of its code."""
        known = self._known.get(experiment)
        if known is not None and known[0] is definition:
            return known[1]
        files = resolve(TrainableSpec.decode(definition["trainable"]), self._code_root, definition.get("code_files"))
        if not files:
            return None
        content = encode_files(files)
        folder = self._log_root / experiment / CODE_FOLDER
        manifest = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.files"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Another worker's process may be reading it.
            draft = folder / f".{manifest.name}.{os.getpid()}"
            draft.write_bytes(content)
            draft.replace(manifest)
        except OSError as error:
            logger.warning(
                "experiment %s: its code can't be kept as it is (%s); changes to it count", experiment, error
            )
            return None
        while len(self._known) >= _REMEMBERED:
            self._known.pop(next(iter(self._known)), None)
        self._known[experiment] = definition, manifest
        return manifest
