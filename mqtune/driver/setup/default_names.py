"""Default names of experiments: the name of the program, and a number.

The numbers of a program's experiments increase. A server, or this machine for local experiments, remembers the last
one.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import sys
from os import PathLike
from pathlib import Path
from typing import Final, TypeAlias

from mqtune.checkpoints import experiment_url, open_store
from mqtune.core.errors import StoreUnavailable
from mqtune.core.keys import LAST_NUMBERS
from mqtune.core.machine import make_folder, mqtune_home
from mqtune.journal.redis import experiments_on
from mqtune.journal.server.connection import CONNECT_TIMEOUT_S, RedisClient
from mqtune.journal.server.retry import retrying
from mqtune.trainable.spec import TrainableSpec

#: Folder in mqtune's home with a file for each stem. The file has the last number of local experiments.
NUMBERS: Final = ".numbers"
#: The place of checkpoint stores, as in ``Checkpoints(store=…)``.
Store: TypeAlias = str | PathLike[str]
_STEM_CHARS: Final = 60
_NOT_IN_STEMS: Final = re.compile(r"[^A-Za-z0-9_-]")


def default_stem(spec: TrainableSpec) -> str:
    """Return the name of the running script without its suffix.

    Without a script, the trainable's name.
    """
    file = getattr(sys.modules["__main__"], "__file__", None)
    program = Path(file or "")
    # With ``python -m PACKAGE``, the file is the package's __main__.py.
    name = program.parent.name if program.name == "__main__.py" else program.stem
    if name in ("", "mqtune"):
        name = Path(spec.name).stem if spec.kind == "script" else spec.name
    return as_stem(name)


def as_stem(text: str) -> str:
    """Turn a text into the beginning of a valid experiment name."""
    return _NOT_IN_STEMS.sub("-", text)[:_STEM_CHARS].lstrip("-_") or "experiment"


def take_name(
    stem: str,
    client: RedisClient | None = None,
    *,
    store: Store | None = None,
    patience_s: float = CONNECT_TIMEOUT_S,
) -> str:
    """Reserve the next free name for an experiment, such as ``digits-3``, and make its folder.

    No other process on this machine or with this server gets the same name, even after the experiment's deletion. If
    the server has lost its data, names are skipped that have a folder on this machine or checkpoints in the store.

    Args:
        stem: the beginning of the name.
        client: the connection to the experiment's server. None for an experiment on this machine alone.
        store: the place of the experiments' checkpoint stores, if one is given.
        patience_s: longest wait for an unavailable server, in seconds.

    Raises:
        ConfigurationError: mqtune's home is not writable.
        BrokerUnavailable: the server did not answer for *patience_s* seconds.
        AccessDenied: the account may not begin experiments.
    """
    make_folder(home := mqtune_home())
    known = set() if client is None else set(experiments_on(client, patience_s=patience_s))
    while True:
        number = _number_here(stem) if client is None else _number_on(client, stem, patience_s)
        name = f"{stem}-{number}"
        if name in known or (store is not None and _is_used(store, name)):
            continue
        with contextlib.suppress(FileExistsError):
            # The folder reserves the name on this machine: experiments on other servers use the same home.
            (home / name).mkdir()
            return name


def release_folder(folder: Path) -> None:
    """Remove an experiment's folder if it is still empty, because the experiment has not begun."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _number_on(client: RedisClient, stem: str, patience_s: float) -> int:
    return int(retrying(lambda: client.hincrby(LAST_NUMBERS, stem, 1), patience_s=patience_s))


def _number_here(stem: str) -> int:
    make_folder(folder := mqtune_home() / NUMBERS)
    with open(folder / stem, "a+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        last = file.read()
        number = int(last) + 1 if last.isdecimal() else 1
        file.truncate(0)
        file.write(str(number))
        file.flush()
    return number


def _is_used(place: Store, experiment: str) -> bool:
    """Whether an experiment of this name has used its store, on any server."""
    store = open_store(experiment_url(place, experiment))
    try:
        return bool(store.tenants() or store.ids())
    except StoreUnavailable:
        # The store does not exist yet. If it can't be reached, the driver raises this error when it begins.
        return False
