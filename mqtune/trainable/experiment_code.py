"""Finds an experiment's code: the trainable's file and its imports below the code root.

The definition has the fingerprint of each file at the experiment's start. It does not cover the block below ``if
__name__ == "__main__":``, which no trial runs. So a script can be edited there, for instance to ask for more trials,
and its code counts as the same.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.frozen_code import body_of, fingerprint, read_source, without_main
from mqtune.trainable.main_module import folder_of

if TYPE_CHECKING:
    from mqtune.trainable.spec import TrainableSpec

#: Maximum number of files. The trainable's own imports come first.
MOST_FILES: Final = 200
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{16}")
_LONGEST_NAME: Final = 4_096


def fingerprints(spec: TrainableSpec, sources: Mapping[str, bytes]) -> dict[str, str]:
    """Return the fingerprint of each file of a trainable's code."""
    return {name: fingerprint(source, is_run=spec.kind == "script") for name, source in sources.items()}


def changed_files(now: Mapping[str, str], before: object) -> list[str]:
    """Return the files whose fingerprints differ. New and removed files don't count."""
    kept = before if isinstance(before, dict) else {}
    return sorted(name for name, fingerprint in now.items() if kept.get(name, fingerprint) != fingerprint)


def read_code(
    spec: TrainableSpec,
    code_root: Path,
    written: Mapping[Path, bytes] = MappingProxyType({}),
    script: Path | None = None,
) -> dict[str, bytes]:
    """Return the files of a trainable's code: their content, by path from the trainable's folder.

    The trainable's own file comes first. The others are found by import statements, without running any. For a script
    the result is its own file alone. It is empty if the trainable's file is missing.

    Args:
        code_root: the folder to which the search is limited.
        written: path and content of the trainable's module, if it is not on the disk.
        script: a script that the written module executes.
    """
    code: dict[str, bytes] = {}
    try:
        first = next(iter(written), None) or spec.locate(code_root)
    except TrainableNotFound:
        return code
    beside = [folder_of(path) for path in (script, first if spec.script else None) if path is not None]
    folders = list(dict.fromkeys([*beside, code_root, *_own_path(code_root)]))
    waiting = deque([first] if script is None else [first, script])
    seen = {*waiting}
    # Python caches the content of folders, and files may have been written just now.
    importlib.invalidate_caches()
    while waiting and len(code) < MOST_FILES:
        path = waiting.popleft()
        source = written[path] if path in written else read_source(path)
        if source is None:
            continue
        code[os.path.relpath(path, first.parent)] = source
        if spec.kind == "script":
            break
        for imported in _imported(path, source, folders):
            if imported not in seen and _is_own(imported, code_root):
                seen.add(imported)
                waiting.append(imported)
    return code


def resolve(spec: TrainableSpec, code_root: Path, files: object) -> dict[str, str]:
    """Return the fingerprints in an experiment's definition, by file path on this machine.

    The definition comes over the wire: paths outside the code root and malformed fingerprints are left out.
    """
    try:
        folder = spec.locate(code_root).parent
    except TrainableNotFound:
        return {}
    paths = {}
    for name, wanted in list(files.items())[:MOST_FILES] if isinstance(files, dict) else ():
        if not (isinstance(name, str) and isinstance(wanted, str) and _FINGERPRINT.fullmatch(wanted)):
            continue
        if "\0" in name or len(name) > _LONGEST_NAME:
            continue
        path = Path(os.path.normpath(folder / name))
        if _is_own(path, code_root) and (path.suffix == ".py" or path == code_root / spec.script):
            paths[str(path)] = wanted
    return paths


def _is_own(path: Path, code_root: Path) -> bool:
    return code_root in path.parents and "site-packages" not in path.parts


def _own_path(code_root: Path) -> list[Path]:
    """Return the folders of ``sys.path`` below the code root, as an editable install adds."""
    return [path for path in map(Path, sys.path) if _is_own(path, code_root)]


def _imported(path: Path, source: bytes, folders: list[Path]) -> Iterator[Path]:
    for node in ast.walk(ast.Module(body_of(without_main(source)), [])):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(alias.name.split("."), folders)
        elif isinstance(node, ast.ImportFrom):
            within = folders if not node.level else [path.parents[min(node.level, len(path.parents)) - 1]]
            module = node.module.split(".") if node.module else []
            if node.level and not module and (package := within[0] / "__init__.py").is_file():
                yield package
            for alias in node.names:
                # A name imported from a package may be a module of it.
                yield from _files_of([*module, alias.name], within)


def _files_of(names: list[str], folders: list[Path]) -> Iterator[Path]:
    if names[:1] == ["mqtune"]:
        return
    places: Iterable[str] | None = map(str, folders)
    for name in names:
        spec = None if places is None else PathFinder.find_spec(name, list(places))
        if spec is None:
            return
        if spec.origin is not None and spec.origin.endswith(".py"):
            yield Path(spec.origin)
        places = spec.submodule_search_locations
