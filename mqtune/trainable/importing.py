"""While a worker imports user code to find the trainable in it: what only a driver may do is an error that says so."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from mqtune.core.errors import TrainableNotFound

__all__ = ["imported_on_worker", "refuse_on_import"]

_WAY_OUT: Final = 'workers import it to find the trainable: put that below `if __name__ == "__main__":`'

_importing: list[Path] = []


@contextmanager
def imported_on_worker(path: Path) -> Iterator[None]:
    """Have the code that is imported from *path* run no experiment and read no input.

    Raises:
        TrainableNotFound: it did.
    """
    _importing.append(path)
    stdin, sys.stdin = sys.stdin, _NoInput(path)
    try:
        yield
    finally:
        sys.stdin = stdin
        _importing.pop()


def refuse_on_import() -> None:
    """Refuse to run an experiment because some code is imported.

    Raises:
        TrainableNotFound: that is the case; it names the file, and the line that it lacks.
    """
    if _importing:
        raise TrainableNotFound(f"{_importing[-1]} runs an experiment when it is imported, and {_WAY_OUT}")


class _NoInput(io.TextIOBase):
    """In the place of standard input, which a worker has none of."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _refuse(self, *_: object) -> NoReturn:
        raise TrainableNotFound(f"{self._path} reads standard input when it is imported, and {_WAY_OUT}")

    read = readline = readlines = __next__ = _refuse

    @property
    def buffer(self) -> NoReturn:
        """What bytes would be read from."""
        self._refuse()
