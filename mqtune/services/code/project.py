"""Packs a project's folder into a bundle.

Files that git or ``.mqtuneignore`` ignores are left out, and so are secrets.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePath
from typing import Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import mqtune_home
from mqtune.trainable import MOST_BYTES, MOST_FILES, Bundle, Cell, File, TrainableSpec, changed_in, fingerprint

logger = logging.getLogger(__name__)

#: File with the patterns of ignored files, one a line.
IGNORE_FILE: Final = ".mqtuneignore"
#: Files of this size are probably no code: a warning names them.
BIG_BYTES: Final = 4 << 20
#: Git's mark of an untracked file.
_UNTRACKED: Final = "?"
#: Timeout of git's listing.
_GIT_S: Final = 60.0
#: Names of files that contain only a key or password, and their endings.
_KEYS: Final = (
    "api_key",
    "api-key",
    "apikey",
    "access_key",
    "access_token",
    "auth_token",
    "api_token",
    "password",
    "secret",
)
_PLAIN: Final = ("", ".txt", ".json", ".y*ml", ".toml", ".ini", ".cfg")
#: Patterns of files that are never packed: passwords and private keys, and files without code.
_SECRETS: Final = (
    *(f"*{key}{plural}{ending}" for key in _KEYS for plural in ("", "s") for ending in _PLAIN),
    *("*.env", "*.env.*", ".envrc", ".flaskenv", "*.tfstate", "*.tfstate.*", "*.tfvars", "token", "token.txt"),
    *(
        "*service_account*.json",
        "*service-account*.json",
        "kaggle.json",
        ".s3cfg",
        ".boto",
        ".passwd-s3fs",
        "rclone.conf",
    ),
    *("*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.jks", "*.keytab", "*.kdbx", "*.ppk"),
    *(
        "id_rsa*",
        "id_dsa*",
        "id_ecdsa*",
        "id_ed25519*",
        ".netrc",
        "_netrc",
        ".pypirc",
        ".npmrc",
        ".htpasswd",
        ".pgpass",
    ),
    *("credentials", "*credentials*.json", "*credentials*.y*ml", "client_secret*.json"),
    *(".git-credentials", ".dockercfg", ".my.cnf", ".vault*", "kubeconfig", "*.kubeconfig", "*.ovpn"),
)
_SAMPLES: Final = ("*.example", "*.sample", "*.template", "*.pub")
#: A notebook changes with each save, and no worker can import it.
_NO_CODE: Final = ("*.ipynb", "*.pyc")
#: Folders that are skipped in a project without git, besides hidden ones.
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
#: A folder with this many files is probably a home folder.
MOST_LISTED: Final = 20 * MOST_FILES
#: Maximum number of names in a line.
_SHOWN: Final = 5


def packed(
    folder: Path, below: Path, outside: Collection[Path] = (), *, most_listed: int = MOST_LISTED
) -> dict[str, File]:
    """Return the files of a folder, by path relative to *below*. Log big and left-out ones.

    Args:
        below: base of the paths: the folder, or one above it.
        outside: excluded subfolders, such as those of experiments.
        most_listed: number of files at which a folder is refused.

    Raises:
        ConfigurationError: they are too many or too large, one can't be read, or a pattern is invalid.
    """
    patterns = _patterns(folder / IGNORE_FILE)
    names = [name for name in _list_files(folder, most_listed) if not _is_left_out(name, patterns)]
    names = [name for name in names if not any(path in (folder / name).parents for path in outside)]
    secrets = [name for name in names if _is_secret(name)]
    linked = [name for name in names if not _is_inside(folder, folder / name)]
    kept = sorted({*names} - {*secrets} - {*linked})
    _warn_of("look like secrets, and stay here", secrets)
    _warn_of("lead out of it, or to folders, and stay here", linked)
    sizes = {name: (folder / name).stat().st_size for name in kept}
    _check_sizes(folder, sizes)
    _warn_of("are big for code; each worker fetches them", [name for name in kept if sizes[name] >= BIG_BYTES])
    prefix = folder.relative_to(below)
    return {(prefix / name).as_posix(): _read(folder / name) for name in kept}


def _warn_of(problem: str, names: list[str]) -> None:
    if names:
        logger.warning("%d of the files for workers %s: %s", len(names), problem, _first_names(names))


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _check_sizes(folder: Path, sizes: Mapping[str, int]) -> None:
    if len(sizes) <= MOST_FILES and sum(sizes.values()) <= MOST_BYTES:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])
    shown = _first_names([f"{name} ({sizes[name] / 1e6:.1f} MB)" for name in largest])
    raise ConfigurationError(
        f"bundle={str(folder)!r} has {len(sizes):,} files of {sum(sizes.values()) / 1e6:.0f} MB, and the limit "
        f"is {MOST_FILES:,} of {MOST_BYTES / 1e6:.0f} MB: {shown}. Name files that no trial needs in .gitignore "
        f"or {IGNORE_FILE}, and put data where workers can read it"
    )


def _read(path: Path) -> File:
    try:
        return File(path.read_bytes(), os.access(path, os.X_OK))
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read for the workers: {error}; name it in {IGNORE_FILE}") from None


class Project:
    """The folder whose files a driver brings to its workers.

    Args:
        outside: folders without code, such as a checkpoint store; ``mqtune_home`` is always one.
        cell: the module that was written for the trainable, if there is one. Without a *folder*, the bundle has it and
            the modules that it imports.

    Raises:
        ConfigurationError: it is not a folder, or does not contain the trainable.
    """

    def __init__(
        self,
        folder: str | Path | None,
        spec: TrainableSpec,
        code_root: Path,
        outside: Iterable[str | Path] = (),
        cell: Cell | None = None,
    ) -> None:
        #: The user's setting that requires the key for code.
        self.needs_key = (
            "Process(bundle=…)" if folder is not None else f"trainable {spec.name!r}, which travels as source,"
        )
        #: Whether all files of the folder are included, so that trials can run in it.
        self.has_all = folder is not None
        self.folder = Path(os.path.abspath(Path(folder or code_root).expanduser()))
        self._spec = spec
        self._first = spec.locate(code_root) if cell is None else code_root / cell.file
        #: The file of a cell, which is not on the disk, and the script whose names it uses.
        self.written = {} if cell is None else {self._first: cell.source}
        self.script = code_root / cell.script if cell is not None and cell.script else None
        #: Values stored as files, by path from the code root.
        self._values = {} if cell is None else cell.values
        if self.folder not in self._first.parents:
            problem = (
                "is not a folder"
                if not self.folder.is_dir()
                else f"has no {self._first}, where trainable {spec.name!r} is"
            )
            raise ConfigurationError(f"bundle={str(folder)!r} {problem}; give the folder of your project")
        self._below = code_root if code_root in self.folder.parents else self.folder
        #: The code root's path in the bundle.
        self.root = code_root.relative_to(self._below).as_posix()
        places = [Path(os.path.abspath(place)) for place in (mqtune_home(), *outside)]
        self._outside = [place for place in places if self.folder in place.parents]
        self._files: dict[str, File] = {}

    def pack(self, sources: Mapping[str, bytes]) -> Bundle:
        """Return the bundle of its current files.

        Args:
            sources: the trainable's file and its imported files, by path from its folder.

        Raises:
            ConfigurationError: they can't be packed, or the trainable's file is left out.
        """
        names = [os.path.relpath(os.path.normpath(self._first.parent / name), self._below) for name in sources]
        needed = {name: File(content) for name, content in zip(names, sources.values(), strict=True)}
        if self.has_all:
            self._files = packed(self.folder, self._below, self._outside)
        else:
            self._files = needed
        if self.written:
            # The first of them is the trainable's own.
            self._files |= dict([next(iter(needed.items()))])
            prefix = PurePath(self.root)
            self._files |= {(prefix / name).as_posix(): File(content) for name, content in self._values.items()}
        if self.written or not self.has_all:
            _check_sizes(self.folder, {name: len(file.content) for name, file in self._files.items()})
        missing = [name for name in names if name not in self._files]
        if os.path.relpath(self._first, self._below) in missing:
            raise ConfigurationError(
                f"bundle={str(self.folder)!r} leaves out {self._first}, where trainable {self._spec.name!r} is: git or "
                f"{IGNORE_FILE} ignores it"
            )
        _warn_of("are imported and left out: workers need them of their own", missing)
        return Bundle.of(self._files)

    def changed_since(self, before: Bundle) -> list[str]:
        """Return the names of files that differ from an earlier bundle.

        Changes in blocks that no trial runs don't count.
        """
        earlier = before.files()
        both = [name for name in earlier.keys() & self._files.keys() if name.endswith(".py")]
        same = [name for name in both if self._fingerprint(earlier[name]) == self._fingerprint(self._files[name])]
        return changed_in(earlier, self._files, same)

    def _fingerprint(self, file: File) -> str:
        return fingerprint(file.content, is_run=self._spec.kind == "script")


# Which files.


def _list_files(folder: Path, most_listed: int) -> list[str]:
    """Return the paths of the files that git does not ignore.

    Hidden files, and files in hidden folders, are included only if git tracks them: tools keep personal data there.
    Without git only installed packages are skipped.
    """
    names = _list_by_git(folder) or list(islice(_walk_files(folder), most_listed))
    if len(names) >= most_listed:
        raise ConfigurationError(
            f"bundle={str(folder)!r} has {most_listed:,} files and more: give your project's folder"
        )
    # A name that isn't UTF-8 can't travel.
    return [name for name in names if (folder / name).is_file() and name.isprintable()]


def _list_by_git(folder: Path) -> list[str]:
    """Return git's listing. Empty without git, outside a work tree, and if all is ignored."""
    # Don't run a program named in the folder's configuration.
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), "ls-files", "-z", "-t", "--cached", "--others"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        said = subprocess.run(
            [*command, "--exclude-standard"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    names: list[str] = []
    for entry in dict.fromkeys(os.fsdecode(name) for name in said.split(b"\0") if name):
        mark, _, name = entry.partition(" ")
        if mark == _UNTRACKED and _is_private(name):
            continue
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            # A submodule, or another work tree within this one.
            names += [f"{name.rstrip('/')}/{inner}" for inner in _list_by_git(path)]
        else:
            names.append(name)
    return names


def _walk_files(folder: Path) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_walk_files(Path(where, name)))
        for name in files:
            if _is_private(name):
                continue
            yield os.path.relpath(os.path.join(where, name), folder)


def _is_walk_files(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name not in _SKIPPED and not (folder / "pyvenv.cfg").exists()


def _is_private(name: str) -> bool:
    """Whether a file is hidden, or in a hidden folder. Not for secrets, which the log names."""
    return any(part.startswith(".") for part in PurePath(name).parts) and not _is_secret(name)


def _is_inside(folder: Path, path: Path) -> bool:
    """Whether a file is below the folder. A link's target has to be below it, too."""
    return not path.is_symlink() or folder.resolve() in path.resolve().parents


def _is_secret(name: str) -> bool:
    last = PurePath(name).name.lower()
    return _matches(last, _SECRETS) and not _matches(last, _SAMPLES)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _patterns(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from None
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if bad := next((line for line in patterns if line.startswith("!") or "**" in line), None):
        raise ConfigurationError(f"{path} has {bad!r}: of .gitignore's patterns it knows neither ! nor **")
    return patterns


def _is_left_out(name: str, patterns: list[str]) -> bool:
    """Whether a pattern names a file or a folder above it.

    A pattern with a slash is compared with the path, and any other with the name.
    """
    path = PurePath(name)
    above = [parent for parent in path.parents if parent.name]
    return _matches(path.name, _NO_CODE) or any(
        _is_named(path_part, pattern)
        for pattern in patterns
        for path_part in (above if pattern.endswith("/") else [path, *above])
    )


def _is_named(path: PurePath, pattern: str) -> bool:
    parts = pattern.strip("/").split("/")
    if "/" not in pattern.rstrip("/"):
        return fnmatchcase(path.name, parts[0])
    return len(parts) == len(path.parts) and all(map(fnmatchcase, path.parts, parts))
