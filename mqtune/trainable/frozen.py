"""The code of an experiment in the processes that run its trials: the files as they were when it began, whatever lies on the disk since."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from mqtune.trainable.experiment_code import decode_files, fingerprint, keep_source, kept_source

__all__ = ["FrozenCode", "freeze", "frozen", "run_as_it_was"]


class FrozenCode:
    """An experiment's files with the content that they had when it began.

    A file that is as it was is read from the disk, and kept in the code folder; for one that has changed since, the kept content
    is taken. Where nothing was kept, as on a machine that never had it, what is on the disk counts, and it is in ``differing``.

    Args:
        folder: the experiment's code folder.
        files: the fingerprint of each file, by its path here.
        is_run: whether they are a script that is run, and not imported.
    """

    def __init__(self, folder: Path, files: Mapping[Path, str], *, is_run: bool = False) -> None:
        #: The files whose content is not the experiment's.
        self.differing: list[Path] = []
        self._sources: dict[str, bytes] = {}
        for path, wanted in files.items():
            try:
                here = path.read_bytes()
            except OSError:
                here = None
            if here is not None and fingerprint(here, is_run=is_run) == wanted:
                # A program that is no Python can only be run as it lies there.
                if path.suffix == ".py":
                    self._sources[str(path)] = here
                    keep_source(folder, wanted, here)
            elif path.suffix == ".py" and (kept := kept_source(folder, wanted, is_run=is_run)) is not None:
                self._sources[str(path)] = kept
            elif here is not None:
                # One that isn't there is no other, and if it is needed the import says so.
                self.differing.append(path)
        #: The last words of the names of its modules.
        self._names = {
            path.parent.name if path.name == "__init__.py" else path.stem for path in map(Path, self._sources)
        }

    def source(self, path: str) -> bytes | None:
        """Return a file's content as it is here for good; None for one that is no part of this, or differs."""
        return self._sources.get(path)

    def loader(self, name: str, path: str) -> SourceFileLoader | None:
        """Return what loads a module from a file's content; None for one that is loaded as ever."""
        return _Loader(name, path, self._sources[path]) if path in self._sources else None

    def install(self) -> None:
        """Have all imports in this process, and those forked from it, come from here."""
        if self._sources:
            sys.meta_path.insert(sys.meta_path.index(PathFinder), self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as ever, and have it loaded from here."""
        if fullname.rpartition(".")[2] not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or (loader := self.loader(fullname, spec.origin)) is None:
            return None
        spec.loader = loader
        return spec


class _Loader(SourceFileLoader):
    """Loads a module from content that was read before; its file is the one on the disk."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        # What Python has compiled before is of what lies on the disk.
        code: CodeType = self.source_to_code(self._source, self.path)
        return code

    def get_data(self, path: Any) -> bytes:
        return self._source if path == self.path else super().get_data(path)


_installed = FrozenCode(Path(), {})


def freeze(manifest: Path, *, is_run: bool) -> None:
    """Have this process, and those forked from it, import what a manifest says; one that is gone says nothing.

    Args:
        manifest: a file in an experiment's code folder, with what ``encode_files`` returns.
        is_run: whether it is of a script that is run.
    """
    global _installed  # noqa: PLW0603 - a process runs trials of one experiment
    try:
        files = decode_files(manifest.read_bytes())
    except (OSError, ValueError):
        return
    _installed = FrozenCode(manifest.parent, files, is_run=is_run)
    _installed.install()


def frozen() -> FrozenCode:
    """Return the code that this process has frozen; without any it has no files."""
    return _installed


def run_as_it_was() -> None:
    """Run a copy of a Python script as if it lay where the script does: the arguments are the script, the copy, and its own."""
    path, copy = sys.argv[1:3]
    sys.argv[:3] = [path]
    sys.path[0] = str(Path(path).parent)
    main = sys.modules["__main__"]
    main.__file__ = path
    _Loader(main.__name__, path, Path(copy).read_bytes()).exec_module(main)
