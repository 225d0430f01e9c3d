"""What an attempt needs before it is claimed: a store that can be reached, and a zygote that has its trainable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from mqtune.core.errors import CodeDiffers, MqtuneError
from mqtune.trainable.spec import TrainableSpec
from mqtune.worker.host import Host
from mqtune.worker.slots import Slot, Turn
from mqtune.worker.zygotes import ImportFailed, ZygoteDied, ZygoteHandle, ZygoteKey

__all__ = ["NO_PROBLEM", "Problem", "find_zygote", "renew_zygote"]

logger = logging.getLogger(__name__)

#: Type and text of what keeps an attempt from running.
Problem = tuple[str, str]
NO_PROBLEM: Final = ("", "")
#: The longest import of a trainable's module: large frameworks on a cold network disk take minutes.
IMPORT_TIMEOUT_S: Final = 600.0


def find_zygote(
    host: Host,
    slot: Slot,
    turn: Turn,
    experiment: str,
    definition: Mapping[str, Any],
    on_import: Callable[[], None],
) -> tuple[ZygoteHandle | None, Problem]:
    """Return a zygote that has imported an experiment's trainable, or why there is none; whatever is wrong, it doesn't raise.

    This comes before the claim: an import may take minutes, in which another worker may have a slot that is ready. When it
    has to wait for one, *on_import* is called before.
    """
    where = f"on worker {host.name}"
    try:
        host.check_store(definition.get("store", ""))
        spec = TrainableSpec.decode(definition["trainable"])
        where += f", trainable {spec} below code root {host.code_root}"
        manifest = host.manifests.of(experiment, definition)
        zygote = _imported(slot, turn, ZygoteKey.of(experiment, definition, host.code_root, manifest), on_import)
        if definition.get("code") == "strict" and (differing := zygote.environment.get("differs")):
            raise CodeDiffers(f"{', '.join(differing)} there is not as it was when the experiment began")
    except ImportFailed as error:
        # A traceback has lines of its own.
        text = str(error)
        return None, (error.kind, where + (":\n" if "\n" in text else ": ") + text)
    except ZygoteDied as error:
        return None, ("ImportDied", f"{where}: the import ended its process: {error}")
    except (MqtuneError, OSError) as error:
        return None, (type(error).__name__, f"{where}: {error}")
    except Exception as error:
        # Unless the attempt ends by it, it is published again and again.
        logger.exception("%s: an attempt of experiment %s could not be made ready", where, experiment)
        return None, (type(error).__name__, f"{where}: {type(error).__name__}: {error}")
    return zygote, NO_PROBLEM


def renew_zygote(turn: Turn, zygote: ZygoteHandle) -> ZygoteHandle:
    """Return a fresh zygote in the place of one that has died.

    Raises:
        ImportFailed: the trainable can no longer be imported.
        ZygoteDied: the import ended its process.
    """
    return _imported(turn.slot, turn, zygote.key, lambda: None)


def _imported(
    slot: Slot, turn: Turn, key: ZygoteKey, on_import: Callable[[], None], *, once_more: bool = True
) -> ZygoteHandle:
    zygote = slot.zygote(key, turn)
    try:
        if not zygote.is_ready:
            on_import()
        zygote.wait_ready(IMPORT_TIMEOUT_S)
    except BaseException as error:
        slot.zygotes.drop(zygote)
        # Killed from outside, it says nothing of the trainable; what kills it again may be the memory that it needs.
        if once_more and isinstance(error, ZygoteDied) and zygote.was_killed:
            return _imported(slot, turn, key, on_import, once_more=False)
        raise
    return zygote
