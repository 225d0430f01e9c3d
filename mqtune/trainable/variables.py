"""Environment variables that an experiment may set for its trials."""

from __future__ import annotations

import re
from typing import Final

from mqtune.core.errors import ConfigurationError

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables that make other code run: Redis users must not set them on workers.
_OF_CODE: Final = re.compile(
    r"LD_\w+|DYLD_\w+|PYTHON(?!HASHSEED$|WARNINGS$|UNBUFFERED$|FAULTHANDLER$|DONTWRITEBYTECODE$|UTF8$)\w*|PATH|HOME|SHELL|IFS"
    r"|BASH_ENV|ENV|PERL5\w+|RUBY\w+|NODE_OPTIONS|R_PROFILE\w*|R_ENVIRON\w*|R_LIBS\w*|GCONV_PATH|GIT_\w+|.*_PRELOAD"
)
#: Variables that a worker sets for each slot.
_OF_SLOTS: Final = re.compile(r"MQTUNE_\w*|CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES")


def check_variable(name: str, value: str) -> str:
    """Check that an experiment may set an environment variable for its trials. Return the value.

    Raises:
        ConfigurationError: the name or the value is invalid.
    """
    if not _NAME.fullmatch(name) or "\0" in value:
        raise ConfigurationError(f"env: {name!r}={value!r} can't be a variable of the environment")
    if _OF_CODE.fullmatch(name):
        raise ConfigurationError(f"env: {name} could make workers run other code; set it where the worker is started")
    if _OF_SLOTS.fullmatch(name):
        raise ConfigurationError(f"env: {name} is set by the worker for each slot; ask for devices by resources=")
    return value
