"""An experiment's code as of its start: fingerprints, stored copies, and imports of these."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import source_hash
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

#: Subfolder of an experiment with a copy of each code file, named by its fingerprint. No trial can have this name.
CODE_FOLDER: Final = ".code"
#: Maximum size of a code file in bytes. No person writes a larger one.
MOST_BYTES: Final = 1 << 20
#: Conditions of a main block, which an import does not run.
_IS_MAIN: Final = ("__name__ == '__main__'", "'__main__' == __name__")
#: mqtune itself is never user code, even below a code root.
_MQTUNE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep


def fingerprint(source: bytes, *, is_run: bool = False) -> str:
    """Return the fingerprint of a file's content, by default without its main block.

    With *is_run* the main block counts, too: a script that is run executes it.
    """
    # Python's own hash of sources. A stronger one would need a library, with megabytes in each trial's process.
    return source_hash(source if is_run else without_main(source)).hex()


class FrozenCode:
    """The files of an experiment with their content at its start.

    An unchanged file is read from the disk and copied into the code folder. For a changed file that copy is used.
    Without a copy, as on a machine that never had the file, the content on the disk is used, and the file is in
    ``differing``.

    Args:
        folder: the experiment's code folder.
        files: the fingerprint of each file, by its path on this machine.
        is_run: whether the file is a script, which is run and not imported.
    """

    def __init__(self, folder: Path, files: Mapping[str, str], *, is_run: bool = False) -> None:
        #: Paths of files whose content is not that of the experiment's start.
        self.differing: list[str] = []
        self._sources: dict[str, bytes] = {}
        for name, wanted in files.items():
            path = Path(name)
            try:
                here = path.read_bytes()
            except OSError:
                here = None
            if here is not None and fingerprint(here, is_run=is_run) == wanted:
                # A program in another language can only be run from the disk.
                if path.suffix == ".py":
                    self._sources[name] = here
                    keep_source(folder, wanted, here)
            elif path.suffix == ".py" and (kept := kept_source(folder, wanted, is_run=is_run)) is not None:
                self._sources[name] = kept
            elif here is not None:
                # A missing file does not differ. If it is needed, its import fails.
                self.differing.append(name)
        #: The last part of each module's name.
        self._names = {
            path.parent.name if path.name == "__init__.py" else path.stem for path in map(Path, self._sources)
        }

    def source(self, path: str) -> bytes | None:
        """Return the content of a file, or None if it is not included or differs."""
        return self._sources.get(path)

    def loader(self, name: str, path: str) -> SourceFileLoader | None:
        """Return a loader of a module from this content of its file, or None for another file."""
        return _FrozenLoader(name, path, self._sources[path]) if path in self._sources else None

    def compile(self, paths: Iterable[str]) -> None:
        """Compile some of the files, so that forks of this process needn't."""
        for path in paths:
            if path in self._sources:
                # An invalid file fails at its import.
                with contextlib.suppress(SyntaxError, ValueError):
                    _compiled(self._sources[path], path)

    def install(self) -> None:
        """Make all later imports in this process and its forks use these files."""
        if self._sources:
            sys.meta_path.insert(sys.meta_path.index(PathFinder), self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module on ``sys.path``. If its file is included, load its content from here."""
        if fullname.rpartition(".")[2] not in self._names:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or (loader := self.loader(fullname, spec.origin)) is None:
            return None
        spec.loader = loader
        return spec


class _FrozenLoader(SourceFileLoader):
    """Loads a module from content in memory. Its ``__file__`` is the path on the disk."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        # Python's compiled file belongs to the content on the disk.
        return _compiled(self._source, self.path)

    def get_data(self, path: str) -> bytes:
        return self._source if path == self.path else super().get_data(path)


@functools.cache
def _compiled(source: bytes, path: str) -> CodeType:
    code: CodeType = InspectLoader.source_to_code(source, path)
    return code


_installed = FrozenCode(Path(), {})


def freeze(code: FrozenCode) -> None:
    """Make this process and its forks import these files."""
    global _installed  # noqa: PLW0603 - a process runs trials of one experiment
    _installed = code
    code.install()


def frozen() -> FrozenCode:
    """Return the frozen code of this process. It is empty before ``freeze``."""
    return _installed


def loaded_files(code_root: Path, script: Path | None = None) -> list[tuple[str, int]]:
    """Return the user's imported files below the code root, and *script* if given.

    Each comes with its modification time in nanoseconds.
    """
    root = str(code_root) + os.sep
    paths = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    if script is not None:
        paths.add(str(script))
    theirs = (path for path in paths if path.startswith(root) and not path.startswith(_MQTUNE))
    return times_of(path for path in theirs if "site-packages" not in path)


def times_of(paths: Iterable[str]) -> list[tuple[str, int]]:
    """Return path and modification time, in nanoseconds, of each file that exists."""
    times = []
    for path in paths:
        with contextlib.suppress(OSError):
            times.append((path, os.stat(path).st_mtime_ns))
    return times


def unfrozen(files: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the files that this process reads from the disk, and not from its frozen code."""
    return [(path, mtime) for path, mtime in files if frozen().source(path) is None]


def are_current(files: Iterable[tuple[str, int]]) -> bool:
    """Whether these files exist and have these modification times."""
    try:
        return all(os.stat(path).st_mtime_ns == mtime for path, mtime in files)
    except OSError:
        return False


def keep_source(folder: Path, wanted: str, source: bytes) -> None:
    """Store a file's content in an experiment's code folder. Write errors are ignored."""
    kept = folder / wanted
    with contextlib.suppress(OSError):
        if not kept.exists():
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".{wanted}.{os.getpid()}"
            draft.write_bytes(source)
            draft.replace(kept)


def kept_source(folder: Path, wanted: str, *, is_run: bool = False) -> bytes | None:
    """Return the stored content for a fingerprint. Return None if it is missing or was changed."""
    source = read_source(folder / wanted)
    return source if source is not None and fingerprint(source, is_run=is_run) == wanted else None


def read_source(path: Path) -> bytes | None:
    """Return a file's content, or None if it can't be read or is too large to be code."""
    try:
        with path.open("rb") as file:
            source = file.read(MOST_BYTES + 1)
    except OSError:
        return None
    return source if len(source) <= MOST_BYTES else None


def without_main(source: bytes) -> bytes:
    """Return a source without its ``if __name__ == "__main__":`` block."""
    if b"__main__" not in source:
        return source.rstrip()
    lines = source.splitlines(keepends=True)
    for node in reversed(_main_blocks(source)):
        if not node.orelse and node.end_lineno is not None:
            del lines[node.lineno - 1 : node.end_lineno]
    # Empty lines at the end don't count.
    return b"".join(lines).rstrip()


def guarded(source: bytes) -> list[ast.stmt]:
    """Return the statements in a source's ``if __name__ == "__main__":`` blocks."""
    return [statement for node in _main_blocks(source) for statement in node.body]


def _main_blocks(source: bytes) -> list[ast.If]:
    return [node for node in body_of(source) if isinstance(node, ast.If) and ast.unparse(node.test) in _IS_MAIN]


#: CPython 3.11 counts the parsing depth of all threads together: it raises a SystemError if two parse at the same time.
PARSING: Final = threading.Lock()


def body_of(source: bytes | str) -> list[ast.stmt]:
    """Return the statements of a source, or an empty list if it can't be parsed. Thread-safe."""
    try:
        with PARSING:
            return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError):
        return []
