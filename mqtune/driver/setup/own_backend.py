"""Opens an experiment on a backend object: a simulation, or a user's own backend."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from mqtune.backends.base import Backend
from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import SIMULATION, make_folder
from mqtune.core.owner import NOBODY, this_owner
from mqtune.driver.setup.connect import (
    DriverContext,
    check_offer,
    describe_driver,
    open_own_store,
    read_warm_start,
    register_resources,
    store_code,
)
from mqtune.driver.setup.default_names import Store, take_name
from mqtune.driver.setup.definition import DefinitionWriter
from mqtune.driver.setup.interrupts import Interrupts
from mqtune.driver.setup.overwriting import delete_earlier
from mqtune.driver.setup.settings import Settings
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile
from mqtune.journal.lock import take_lock


class BackendDeployment:
    """The deployment on a backend object: a simulation, or a user's own backend."""

    def __init__(self, backend: Backend) -> None:
        self.local_slots = None
        self.has_own_worker = False
        self.is_simulated = is_simulated(backend)
        self._backend = backend

    def close(self) -> None:
        """Do nothing: there is no connection before ``open``."""

    def new_name(self, stem: str, *, store: Store | None = None, sleep: Callable[[float], None] = time.sleep) -> str:
        """Reserve and return the default name of a new experiment. It is unique on this machine."""
        return take_name(stem, store=store)

    def prepare(self, settings: Settings, folder: Path, stack: ExitStack) -> None:
        """Do nothing: the backend starts its workers."""

    def open(self, settings: Settings, folder: Path, stack: ExitStack, interrupts: Interrupts) -> DriverContext:
        """Open a session of the backend, take the experiment's lock, and return what a driver needs.

        Raises:
            NameTaken: another driver runs the experiment of this name, or that experiment has another definition.
            InsufficientResources: no worker offers the resources of a trial, and trials may not wait.
            StoreUnavailable: the checkpoint store can't be reached or written from here.
            ConfigurationError: the settings have a bundle, which only a broker's or the local worker can take.
        """
        if settings.project is not None and not self.is_simulated:
            raise ConfigurationError("Process(bundle=…) is for a broker's workers, or this machine's: leave it out")
        backend = self._backend.open(settings.name, settings.expected[0])
        stack.callback(backend.close)
        register_resources(settings, backend)
        check_offer(settings, backend)
        journal, writer = backend.journal, DefinitionWriter(settings)
        holder = secrets.token_hex(8)
        read_warm_start(writer, journal, folder)
        take_lock(journal, holder)
        stack.callback(journal.unlock, holder)
        make_folder(folder)
        store = None
        if not self.is_simulated:
            writer.read_code()
            store = open_own_store(writer, None)
        if settings.overwrites:
            delete_earlier(journal, folder, store)
        kept = journal.definition()
        definition = writer.definition(kept)
        store_code(writer, definition, folder)
        owner = NOBODY if self.is_simulated else this_owner()
        return DriverContext(
            journal=journal,
            backend=backend,
            clock=backend.clock,
            holder=holder,
            copy=JournalFile(folder / JOURNAL_FILE),
            driver=SIMULATION if self.is_simulated else describe_driver(owner),
            owner=owner,
            store=store,
            definition=definition,
            changed=writer.changed,
            is_new=kept is None,
            is_private=False,
            may_grow=not self.is_simulated,
            start_worker=lambda: None,
            interrupts=None if self.is_simulated else interrupts,
        )


def is_simulated(backend: object) -> bool:
    """Whether a backend simulates its workers."""
    from mqtune.backends.simulated import Simulated  # noqa: PLC0415 - most runs don't need it

    return isinstance(backend, Simulated)
