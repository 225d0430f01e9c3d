"""Connects a driver to its broker, or to this machine's server."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from mqtune.backends.base import BackendSession, TakesResources
from mqtune.backends.local.backend import LocalBackend
from mqtune.backends.local.server import EmbeddedServer, find_binary, server_url
from mqtune.backends.local.worker import PrivateWorker, WorkerProcess
from mqtune.backends.queues import QueueBackend
from mqtune.checkpoints import CheckpointStore, experiment_url, open_store
from mqtune.core.clock import Clock
from mqtune.core.codec import encode_value
from mqtune.core.definition import decode_definition
from mqtune.core.errors import (
    BrokerUnavailable,
    ConfigurationError,
    InsufficientResources,
    JournalGone,
    TrainableNotFound,
)
from mqtune.core.machine import CHECKPOINTS, SERVER_FOLDER, make_folder
from mqtune.core.owner import Owner, this_owner
from mqtune.core.submission import DRIVER
from mqtune.core.timing import Timing
from mqtune.driver.setup.bundling import BundleFolder, bring, needed
from mqtune.driver.setup.default_names import Store, take_name
from mqtune.driver.setup.definition import DefinitionWriter
from mqtune.driver.setup.interrupts import Interrupts
from mqtune.driver.setup.local_slots import slot_settings
from mqtune.driver.setup.options import Definition
from mqtune.driver.setup.overwriting import delete_earlier
from mqtune.driver.setup.settings import HasLocalSlots, Settings
from mqtune.driver.setup.tenancy import claim, is_shared, tenant_on
from mqtune.journal.base import Journal
from mqtune.journal.exchange.code import CodeExchange
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile, definition_in
from mqtune.journal.lock import take_lock
from mqtune.journal.redis import RedisJournal, experiments_on
from mqtune.journal.server.clock import ServerClock
from mqtune.journal.server.connection import RedisClient, account_of, connect, redact
from mqtune.journal.server.owner import person
from mqtune.journal.server.retry import RETRY_MAX_S
from mqtune.trainable.bundle import KEY_VARIABLE, check_key
from mqtune.trainable.frozen_code import CODE_FOLDER, keep_source

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class DriverContext:
    """Everything that a driver has connected to, while it holds the experiment's lock."""

    journal: Journal
    backend: BackendSession
    clock: Clock
    #: The token with which the driver has taken the lock.
    holder: str
    #: The file in the experiment's folder with the driver's copy of the journal.
    copy: JournalFile
    #: A description of the driver's process, for people.
    driver: str
    #: The user who runs the driver.
    owner: Owner
    #: The experiment's checkpoint store, or None.
    store: CheckpointStore | None
    definition: Definition
    #: The names of the trainable's files that have changed since the experiment began.
    changed: list[str]
    #: Whether the experiment has no definition yet.
    is_new: bool
    #: Whether the server belongs to this run, so no worker of an earlier run can still work.
    is_private: bool
    #: Whether slots with other resources may still join.
    may_grow: bool
    #: Starts the local worker and returns it, or returns None if the place has no local worker. The caller ends it.
    start_worker: Callable[[], WorkerProcess | None]
    #: Ends a wait on Ctrl-C. None if the driver never waits, as in a simulation.
    interrupts: Interrupts | None

    @property
    def folder(self) -> Path:
        """The experiment's folder on this machine."""
        return self.copy.path.parent

    @property
    def waits(self) -> bool:
        """Whether the driver ever waits."""
        return self.interrupts is not None


class Deployment(HasLocalSlots, Protocol):
    """The servers and slots on which an experiment is to run."""

    def new_name(self, stem: str, *, store: Store | None = None, sleep: Callable[[float], None] = time.sleep) -> str:
        """Reserve and return the default name of a new experiment, and make its folder.

        Args:
            stem: the beginning of the name.
            store: the place of the experiments' checkpoint stores.
            sleep: waits that many seconds while the server is unavailable.
        """

    def prepare(self, settings: Settings, folder: Path, stack: ExitStack) -> None:
        """Start processes that are forked, before this process has threads.

        *stack* ends them. A repeated call changes nothing.
        """

    def open(self, settings: Settings, folder: Path, stack: ExitStack, interrupts: Interrupts) -> DriverContext:
        """Connect, take the experiment's lock, and return what a driver needs.

        *stack* releases everything. *interrupts* ends a wait.
        """

    def close(self) -> None:
        """Close the connection if ``open`` was never called."""


@dataclass(frozen=True, slots=True)
class _Server:
    """A running Redis with a connection to it."""

    url: str
    #: Whether the driver starts a worker on this machine.
    is_local: bool
    #: Whether this run has started the server for itself.
    is_private: bool
    client: RedisClient


class BrokerDeployment:
    """The deployment on a broker's workers or, without a broker, on a local server and worker.

    Args:
        broker: the broker's URL, or None.
        local_slots: the number of slots of the local worker. By default as many as fit.
        timing: the driver's intervals and time-outs.
    """

    def __init__(self, broker: str | None, *, local_slots: int | None = None, timing: Timing = Timing()) -> None:
        self._timing = timing
        self.local_slots = local_slots
        #: The URL of the store in the experiment's definition, empty if it has no store. None: the settings say which.
        self.store: str | None = None
        self._broker = broker
        self._server: _Server | None = None
        #: The worker that ``prepare`` has started, until it gets its first instructions.
        self._worker: PrivateWorker | None = None
        #: Closes the connection, and ends a server that was started.
        self._closing = ExitStack()

    @property
    def has_own_worker(self) -> bool:
        """Whether trials run on this machine alone, on a worker that the driver starts."""
        return self._broker is None

    @property
    def is_known(self) -> bool:
        """Whether the server's URL is known, so that no server need be started."""
        return self._broker is not None or server_url() is not None

    @property
    def is_private(self) -> bool:
        """Whether this run has started the server, so that nobody else can have written to it."""
        return self._server is None or self._server.is_private

    @property
    def shown(self) -> str:
        """The server's name in messages."""
        return "this machine" if self._server is None or self.is_private else redact(self._server.url)

    def definition(self, name: str, folder: Path) -> Definition | None:
        """Return an experiment's definition, or None if neither the server nor the folder has it.

        This connects, and leaves the connection open.

        Raises:
            BrokerUnavailable: Redis can't be reached, is too old, or refuses the password.
            MessageVersionError: the stored definition can't be decoded.
        """
        kept = RedisJournal(self.connect(folder).client, name, patience_s=self._timing.patience_s).definition()
        if kept is None:
            with contextlib.suppress(JournalGone):
                kept = definition_in(JournalFile(folder / JOURNAL_FILE), name)
        return None if kept is None else decode_definition(name, kept)

    def experiments(self) -> list[str]:
        """Return the server's experiments, newest first. Call ``definition`` before."""
        assert self._server is not None  # noqa: S101 - ``definition`` has connected
        return experiments_on(self._server.client, patience_s=self._timing.patience_s)

    def new_name(self, stem: str, *, store: Store | None = None, sleep: Callable[[float], None] = time.sleep) -> str:
        """Reserve and return the default name of a new experiment, as ``take_name`` does.

        Raises:
            as ``take_name``.
        """
        if (url := self._broker or server_url()) is None:
            return take_name(stem, store=store)
        # Close this connection immediately: no connection may be open when ``prepare`` forks.
        with contextlib.closing(_connect_patiently(url, sleep, self._timing)) as client:
            return take_name(stem, client, store=store, patience_s=self._timing.patience_s)

    def close(self) -> None:
        """Close the connection, and end the server if it was started for this run."""
        self._closing.close()

    def open(self, settings: Settings, folder: Path, stack: ExitStack, interrupts: Interrupts) -> DriverContext:
        """Connect, take the experiment's lock, and return what a driver needs.

        Raises:
            BrokerUnavailable: Redis can't be reached, is too old, or refuses the password.
            NameTaken: another driver runs the experiment of this name, or that experiment has another definition.
            StoreUnavailable: the checkpoint store can't be reached or written from here.
            InsufficientResources: this machine lacks the resources of a trial; or no worker of the broker offers them,
                and trials may not wait.
            ConfigurationError: trials need several workers, and a run on this machine has one.
        """
        stack.callback(self._closing.close)
        self.prepare(settings, folder, stack)
        server = self.connect(folder, sleep=interrupts.sleep)
        broker, client, is_local = server.url, server.client, server.is_local
        if settings.project is not None and not is_local:
            check_key(os.environ.get(KEY_VARIABLE, ""), settings.project.needs_key)
        writer = DefinitionWriter(settings, "" if is_local else broker)
        journal = RedisJournal(client, settings.name, patience_s=self._timing.patience_s)
        holder = secrets.token_hex(8)
        read_warm_start(writer, journal, folder)
        take_lock(journal, holder, sleep=interrupts.sleep)
        stack.callback(unless_away, journal.unlock, holder)
        make_folder(folder)
        store = open_own_store(writer, folder / CHECKPOINTS if is_local else None, known=self.store)
        clock = ServerClock(client)
        bundles, exchange = (
            BundleFolder(folder),
            CodeExchange(client, settings.name, patience_s=self._timing.patience_s),
        )
        writer.find_bundle = lambda digest: bundles.find(digest) or exchange.bundle(digest)
        writer.read_code()
        if settings.overwrites:
            if is_local:
                # Raise before the deletion if the new experiment can't run on this machine.
                slot_settings(settings.resources_for_all(), self.local_slots)
            stays = [DRIVER, *((SERVER_FOLDER, CHECKPOINTS) if is_local else ())]
            if self._worker is not None:
                stays.append(self._worker.log.name)
            delete_earlier(journal, folder, store if is_local else _claim_store(store, broker, settings.name), stays)
        if store is not None:
            claim(store, client, settings.name, patience_s=self._timing.patience_s)
            # The journal of a run on this machine need not save the memory of a shared server.
            journal.chapter_store = None if is_local else store
        kept = journal.definition()
        if kept is None:
            # The server may have lost the experiment. The driver will notice that, and restore it.
            kept = definition_in(JournalFile(folder / JOURNAL_FILE), settings.name)
        if kept is None and is_local:
            # Raise before the experiment is created if it can't run on this machine.
            slot_settings(settings.resources_for_all(), self.local_slots)
        definition = writer.definition(kept)
        store_code(writer, definition, folder)
        if writer.bundle is not None:
            bundles.keep(writer.bundle)
        code_key = os.environ.get(KEY_VARIABLE) or (secrets.token_hex() if is_local else "")
        bundle = writer.bundle or bundles.find(definition.get("bundle", ""))
        journal.on_restored = bring(
            definition, bundle, exchange, code_key, is_own=is_local, before=writer.bundle_before
        )
        digest = hashlib.sha256(encode_value(definition)).hexdigest()[:16]
        backend = _backend_on(server)(
            client,
            broker,
            journal=journal,
            clock=clock,
            title=f"{settings.name}/{settings.spec.name}",
            digest=digest,
            resources=settings.expected[0],
            patience_s=self._timing.patience_s,
            takes_code=bool(definition.get("bundle")),
        )
        stack.callback(backend.close)
        register_resources(settings, backend)
        if not is_local:
            check_offer(settings, backend)
        return DriverContext(
            journal=journal,
            backend=backend,
            clock=clock,
            holder=holder,
            copy=JournalFile(folder / JOURNAL_FILE),
            driver=describe_driver(this_owner(account_of(client))),
            owner=person(client),
            store=store,
            definition=definition,
            changed=writer.changed,
            is_new=kept is None,
            is_private=server.is_private,
            may_grow=not is_local,
            start_worker=partial(
                self._start_worker, settings, folder, definition, digest, code_key if definition.get("bundle") else ""
            ),
            interrupts=interrupts,
        )

    def _start_worker(
        self, settings: Settings, folder: Path, definition: Definition, digest: str, code_key: str
    ) -> WorkerProcess | None:
        """Start the local worker and return it. Return None if trials run on a broker's workers."""
        server = self._server
        if server is None or not server.is_local:
            return None
        least_bytes = min(resources.shared_bytes for resources in settings.expected)
        slots = slot_settings(needed(settings.resources_for_all(), definition), self.local_slots, least_bytes)
        if settings.spec.is_carried and self._worker is None:
            raise TrainableNotFound(
                f"trainable {settings.spec.name!r} was in the memory of the program that began the experiment, and in "
                f"no file: run that program again with name={settings.name!r} to continue the experiment"
            )
        worker, self._worker = self._worker or PrivateWorker(folder), None
        ahead, timing = (settings.name, digest), self._timing
        worker.begin(
            server.url, code_root=settings.code_root, slots=slots, ahead=ahead, code_key=code_key, timing=timing
        )
        return worker

    def prepare(self, settings: Settings, folder: Path, stack: ExitStack) -> None:
        """Start the worker of a new local experiment, so that it gets ready while the server starts.

        The worker of an existing experiment is started later, because the experiment may have ended. If only this
        process has the trainable, the worker is always started here, with a fork of this process as its importer.

        Raises:
            TrainableNotFound: only a fork of this process could have the trainable, and this process can't be forked.
        """
        for check in settings.checks if self._broker is None else ():
            check(settings.expected, None)
        is_new = not self.is_known and not settings.overwrites and not (folder / JOURNAL_FILE).exists()
        if (is_new or settings.carried is not None) and self._worker is None:
            make_folder(folder)
            self._worker = worker = PrivateWorker(folder, settings.carried)
            stack.callback(worker.kill)
            if settings.carried is not None:
                logger.warning(
                    "trials are forks of this program, on this machine alone; a fleet needs more: %s",
                    settings.carried.why,
                )

    def connect(self, folder: Path, sleep: Callable[[float], None] = time.sleep) -> _Server:
        """Return the server. The first call finds or starts it, and connects."""
        if self._server is None:
            url, is_local, is_private = self._find_or_start_server(folder)
            client = _connect_patiently(url, sleep, self._timing)
            self._closing.callback(client.close)
            self._server = _Server(url, is_local, is_private, client)
        return self._server

    def _find_or_start_server(self, folder: Path) -> tuple[str, bool, bool]:
        """Return the server's URL, ``is_local`` and ``is_private`` (see ``_Server``)."""
        if self._broker is not None:
            return self._broker, False, False
        if (url := server_url()) is not None:
            return url, True, False
        binary = find_binary(folder)
        make_folder(folder)
        server = EmbeddedServer.start(folder, binary=binary, timing=self._timing)
        self._closing.callback(server.stop)
        return server.url, True, True


def _connect_patiently(url: str, sleep: Callable[[float], None], timing: Timing) -> RedisClient:
    """Connect to a server. Retry for ``timing.patience_s`` seconds while it is unavailable."""
    deadline = time.monotonic() + timing.patience_s
    is_logged = False
    while True:
        try:
            return connect(url, timing=timing, role="driver")
        except BrokerUnavailable as error:
            if not error.may_pass or time.monotonic() >= deadline:
                raise
            if not is_logged:
                logger.warning("%s; trying again for up to %g s", error, timing.patience_s)
                is_logged = True
        sleep(RETRY_MAX_S)


def _backend_on(server: _Server) -> type[QueueBackend]:
    """Return the backend class for a server: with a local worker one without Celery."""
    if server.is_local:
        return LocalBackend
    from mqtune.backends.celery import CeleryBackend  # noqa: PLC0415 - celery's import takes a third of a second

    return CeleryBackend


def read_warm_start(writer: DefinitionWriter, journal: Journal, folder: Path) -> None:
    """Read the trials that a new experiment's searcher learns from.

    Call this before taking the lock, because reading may last longer than the lock does, and before deleting an earlier
    experiment of this name, because its trials may be the ones.
    """
    is_known = journal.definition() is not None or (folder / JOURNAL_FILE).is_file()
    if writer.settings.overwrites or not is_known:
        writer.learnt()


def register_resources(settings: Settings, backend: BackendSession) -> None:
    """Check the trials' resources, and have the backend count the slots that fit them.

    Raises:
        ConfigurationError: the backend does not support the resources, or only equal resources for all trials.
    """
    for check in settings.checks:
        check(settings.expected, backend)
    if settings.asks is None:
        return
    if not isinstance(backend, TakesResources):
        raise ConfigurationError(
            f"resources={settings.asks.name}: the trials of this backend, {type(backend).__name__}, all get the same: "
            f"give mqtune.Resources(…)"
        )
    for resources in settings.expected:
        backend.expect(resources)


def check_offer(settings: Settings, backend: BackendSession) -> None:
    """Raise InsufficientResources if no slot, free or busy, fits and trials may not wait."""
    if not settings.run.queue_trials:
        backend.refresh()
        if not backend.slots:
            raise InsufficientResources(backend.why_no_slot())


def open_own_store(writer: DefinitionWriter, usual: Path | None, *, known: str | None = None) -> CheckpointStore | None:
    """Create the experiment's checkpoint store if it is missing, and return it.

    Return None without a store.

    Args:
        writer: has the settings. Its ``store`` is set to the store's URL.
        usual: the folder to use if the settings name no store. None for no store then.
        known: the URL in the experiment's definition, empty for no store. None: the settings say which.
    """
    settings = writer.settings
    given = settings.checkpoints.store
    if known is not None:
        url = known
    elif given is not None:
        url = experiment_url(given, settings.name)
    else:
        url = "" if usual is None else str(usual)
    if not url:
        return None
    store = open_store(url)
    store.create()
    writer.store = store.url
    return store


def store_code(writer: DefinitionWriter, definition: Definition, folder: Path) -> None:
    """Copy the trainable's files into the experiment's folder, for trials if files are edited."""
    for name, wanted in definition["code_files"].items():
        if name in writer.sources:
            keep_source(folder / CODE_FOLDER, wanted, writer.sources[name])


def _claim_store(store: CheckpointStore | None, url: str, name: str) -> CheckpointStore | None:
    """Return the store, or None if experiments of this name on other servers may use it too."""
    if store is None or not is_shared(store, tenant_on(url, name)):
        return store
    logger.warning(
        "the checkpoints in %s stay: an experiment of this name on another broker may have them too", store.describe()
    )
    return None


def unless_away(action: Callable[..., None], *arguments: object) -> None:
    """Call *action*, and ignore BrokerUnavailable."""
    with contextlib.suppress(BrokerUnavailable):
        action(*arguments)


def describe_driver(owner: Owner) -> str:
    """Return this driver in words, for the holder of the lock."""
    return f"process {os.getpid()} of {owner}"
