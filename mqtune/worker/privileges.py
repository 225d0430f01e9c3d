"""What of a worker its trials don't get: the broker's URL, and the rights of root."""

from __future__ import annotations

import ctypes
import os
import pwd
import sys
from pathlib import Path
from typing import Final

from mqtune.core.errors import ConfigurationError

__all__ = ["become", "conceal", "home_of", "without_secrets"]

#: The variables that carry the broker's password, which no trial needs, nor whoever logs a trial's environment.
_SECRETS: Final = frozenset({"MQTUNE_BROKER", "MQTUNE_REDIS_URL", "MQTUNE_ACL_PASSWORD", "CELERY_BROKER_URL"})
#: Where /proc/self/stat says, counted behind the process's name, at which addresses its first environment begins and ends.
_ENV_START: Final = 47
_ENV_END: Final = 48


def without_secrets() -> dict[str, str]:
    """Return this process's environment, as its children get it."""
    return {name: value for name, value in os.environ.items() if name not in _SECRETS}


def conceal() -> None:
    """Blot the secrets out of what /proc/PID/environ shows of this process (Linux only).

    That is the environment as it was when the program began. ``os.environ``, and a program that is run in this one's place,
    still have them.
    """
    if sys.platform != "linux":
        return
    kept = [name for name in _SECRETS if name in os.environ]
    for name in kept:
        # From now on the C library has its own copy.
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
    return Path(_found(user).pw_dir)


def become(user: str) -> None:
    """Give up root's rights for those of a user, for good; where this is that user nothing happens.

    Raises:
        ConfigurationError: there is no such user, or this is neither root nor that user.
    """
    found = _found(user)
    if os.geteuid() == found.pw_uid:
        return
    if os.geteuid() != 0:
        raise ConfigurationError(
            f"--user {user}: only root can become another user; start the worker as root, or as {user} without --user"
        )
    os.initgroups(user, found.pw_gid)
    os.setgid(found.pw_gid)
    os.setuid(found.pw_uid)
    os.environ.update(HOME=found.pw_dir, USER=user, LOGNAME=user)


def _found(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise ConfigurationError(f"--user {user}: this machine has no such user; make one: useradd --system") from None
