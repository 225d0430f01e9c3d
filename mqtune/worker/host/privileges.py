"""Keeps the broker's password and root privileges from trials."""

from __future__ import annotations

import ctypes
import os
import pwd
import sys
from pathlib import Path
from typing import Final

from mqtune.core.errors import ConfigurationError
from mqtune.trainable.bundle import KEY_VARIABLE

#: Variables with the broker's password or the code key. Trials don't need them, and some log their environment.
_SECRETS: Final = frozenset(
    {
        "MQTUNE_BROKER",
        "MQTUNE_DRIVER_BROKER",
        "MQTUNE_REDIS_URL",
        "MQTUNE_ACL_PASSWORD",
        "CELERY_BROKER_URL",
        KEY_VARIABLE,
    }
)
#: Fields of /proc/self/stat, counted after the process's name: memory addresses of the initial environment.
_ENV_START: Final = 47
_ENV_END: Final = 48


def without_secrets() -> dict[str, str]:
    """Return this process's environment without the secrets, for its children."""
    return {name: value for name, value in os.environ.items() if name not in _SECRETS}


def conceal() -> None:
    """Erase the secrets from /proc/PID/environ of this process (Linux only).

    That file shows the initial environment. ``os.environ`` keeps the secrets, and so does a program started by exec.
    """
    if sys.platform != "linux":
        return
    kept = [name for name in _SECRETS if name in os.environ]
    for name in kept:
        # Setting it makes the C library keep its own copy.
        os.environ[name] = os.environ[name]
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    if not 0 < start < end:
        return
    block = ctypes.string_at(start, end - start)
    at = 0
    for entry in block.split(b"\0"):
        variable, equals, value = entry.partition(b"=")
        if equals and os.fsdecode(variable) in kept:
            ctypes.memset(start + at + len(variable) + 1, ord("*"), len(value))
        at += len(entry) + 1


def home_of(user: str) -> Path:
    """Return a user's home folder.

    Raises:
        ConfigurationError: there is no such user.
    """
    return Path(_find_user(user).pw_dir)


def become(user: str) -> None:
    """Switch permanently from root to a user. Do nothing if the process has that user.

    Raises:
        ConfigurationError: there is no such user, or the process is neither root nor that user.
    """
    entry = _find_user(user)
    if os.geteuid() == entry.pw_uid:
        return
    if os.geteuid() != 0:
        raise ConfigurationError(
            f"--user {user}: only root can become another user; start the worker as root, or as {user} without --user"
        )
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ.update(HOME=entry.pw_dir, USER=user, LOGNAME=user)


def _find_user(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise ConfigurationError(f"--user {user}: this machine has no such user; make one: useradd --system") from None
