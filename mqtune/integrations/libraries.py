"""Imports of other libraries, which an extra installs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mqtune.extend import ConfigurationError, install_command


@contextlib.contextmanager
def importing(library: str, extra: str) -> Iterator[None]:
    """Within the block, turn an ImportError into one that says how to install a library.

    Raises:
        ConfigurationError: the library can't be imported.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(f"{library} can't be imported ({error}); {install_command(extra)}") from error
