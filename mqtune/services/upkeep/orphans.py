"""Finds keys on a server whose experiment no longer exists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import redis

from mqtune.core.errors import MessageVersionError
from mqtune.core.keys import ALL_EXPERIMENTS, EXPERIMENTS, ExperimentKeys, experiment_of, is_name
from mqtune.journal import experiments_on, naming, number, retrying, script_in

#: Number of keys that the server scans in a call.
_SCAN_COUNT: Final = 1_000
T = TypeVar("T")


class Orphans:
    """Finds and removes keys of unlisted experiments without journal, definition or driver.

    An unlisted experiment with one of these is kept: a server that evicts keys may have lost only its list entry.

    Args:
        patience_s: how long a call retries while the server is away.
    """

    def __init__(self, client: redis.Redis, *, patience_s: float) -> None:
        self._client: Any = client
        self._patience_s = patience_s

    def _retrying(self, call: Callable[[], T]) -> T:
        return retrying(call, patience_s=self._patience_s)

    def keys(self) -> dict[str, list[str]]:
        """Return these keys by the name of their experiment.

        Expiring keys are left out, and so are all keys of an experiment whose entries a driver is restoring.

        Raises:
            AccessDenied: the account may not see the names of keys.
        """
        keys: dict[str, list[str]] = defaultdict(list)
        scan = self._client.scan_iter(ALL_EXPERIMENTS, count=_SCAN_COUNT)
        for key in {key.decode(errors="replace") for key in self._retrying(lambda: list(scan))}:
            if name := experiment_of(key):
                keys[name].append(key)
        return {name: stay for name in self.unknown(keys) if (stay := _staying(name, keys[name]))}

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Return the names that belong to no experiment."""
        known = set(experiments_on(self._client, patience_s=self._patience_s))
        return sorted(name for name in set(names) - known if not self._has_any(ExperimentKeys(name)))

    def _has_any(self, keys: ExperimentKeys) -> bool:
        return bool(self._retrying(lambda: self._client.exists(keys.driver, keys.meta, keys.journal)))

    def emptied(self) -> list[str]:
        """Return the experiments that have only a name left.

        A deletion was interrupted, or a driver died as it began. Their drivers' locks have expired. An experiment with
        an unreadable lock may have a driver, and is left out.
        """
        seconds, microseconds = self._retrying(self._client.time)
        now_ms = seconds * 1000 + microseconds // 1000
        names = [name for name in experiments_on(self._client, patience_s=self._patience_s) if is_name(name)]
        return sorted(name for name in names if self._is_emptied(ExperimentKeys(name), now_ms))

    def _is_emptied(self, keys: ExperimentKeys, now_ms: int) -> bool:
        try:
            with naming(keys.meta):
                definition, until_ms = self._retrying(
                    lambda: self._client.hmget(keys.meta, "definition", "driver_until")
                )
            if definition is not None or not 0 < number(until_ms) <= now_ms:
                return False
            with naming(keys.journal):
                return not self._retrying(lambda: self._client.xrange(keys.journal, count=1))
        except MessageVersionError:
            # Another program has written to its journal: it is not empty.
            return False

    def size(self, keys: Sequence[str]) -> int:
        """Return the memory of keys, in bytes.

        Raises:
            AccessDenied: the account may not ask.
        """
        return self._retrying(lambda: sum(self._client.memory_usage(key) or 0 for key in keys))

    def remove(self, experiment: str, keys: Sequence[str]) -> int:
        """Delete keys of an experiment and return their number: 0 if the experiment exists by now.

        Raises:
            AccessDenied: the account may not delete them.
        """
        kept = ExperimentKeys(experiment)
        all_ = [kept.driver, kept.meta, kept.journal, EXPERIMENTS, *keys]
        clear = script_in("mqtune.services.upkeep", "clear")
        return int(self._retrying(lambda: clear(self._client, all_, [experiment])))


def _staying(experiment: str, keys: list[str]) -> list[str]:
    kept = ExperimentKeys(experiment)
    if any(key.startswith(kept.restored("")) for key in keys):
        return []
    return sorted(key for key in keys if not key.startswith((kept.asked(""), kept.log(""), kept.usage(""))))
