"""Where an experiment runs: a broker with its workers, this machine alone, or a simulation."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from mqtune.backends.base import Backend, BackendSession, TakesResources
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
from mqtune.core.events import TrialStaged, driver_events
from mqtune.core.machine import CHECKPOINTS, SERVER_FOLDER, SIMULATION, make_folder
from mqtune.core.owner import NOBODY, Owner, this_owner
from mqtune.core.submission import DRIVER
from mqtune.core.timing import Timing
from mqtune.driver.setup.bundling import BundleFolder, bring, needed
from mqtune.driver.setup.default_names import Store, take_name
from mqtune.driver.setup.definition import DefinitionWriter
from mqtune.driver.setup.interrupts import Interrupts
from mqtune.driver.setup.local_slots import slot_settings
from mqtune.driver.setup.options import Checkpoints, Definition, Local
from mqtune.driver.setup.settings import HasLocalSlots, Settings
from mqtune.driver.setup.tenancy import claim, is_shared, tenant_on
from mqtune.journal.base import Journal
from mqtune.journal.exchange.code import CodeExchange
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile, definition_in
from mqtune.journal.files.reading import readable_entries
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
    """The place where an experiment runs, under the driver's lock.

    It has the journal, backend, clock, store and definition.
    """

    journal: Journal
    backend: BackendSession
    clock: Clock
    #: The token by which the driver has the lock.
    holder: str
    #: The file in the experiment's folder with the driver's copy of the journal.
    copy: JournalFile
    #: The driver, for people, and its owner.
    driver: str
    owner: Owner
    store: CheckpointStore | None
    definition: Definition
    #: The files of the trainable that have changed since the experiment began.
    changed: list[str]
    is_new: bool
    #: Whether no worker of an earlier run can be left.
    is_private: bool
    #: Whether slots with other offers may be added.
    may_grow: bool
    #: Starts the worker on this machine, if there is to be one. The caller ends it.
    start_worker: Callable[[], WorkerProcess | None]
    #: May end a wait. None if the driver never waits: then nothing may be interrupted in the middle.
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
    """The servers and slots that an experiment runs on."""

    def new_name(self, stem: str, *, store: Store | None = None, sleep: Callable[[float], None] = time.sleep) -> str:
        """Take the default name of a new experiment, and make its folder.

        *sleep* waits for an unavailable server.
        """

    def prepare(self, settings: Settings, folder: Path, stack: ExitStack) -> None:
        """Start processes that must begin before this one has threads.

        *stack* ends them. Doing it again changes nothing.
        """

    def open(self, settings: Settings, folder: Path, stack: ExitStack, interrupts: Interrupts) -> DriverContext:
        """Connect, and take the experiment's lock.

        *stack* releases everything, and *interrupts* may end a wait.
        """

    def close(self) -> None:
        """Close the connection of a deployment that no session was opened on."""


@dataclass(frozen=True, slots=True)
class _Server:
    """A Redis that is up, whether a worker is to be started beside it, and whether it is this run's own."""

    url: str
    is_local: bool
    is_private: bool
    client: RedisClient


class BrokerDeployment:
    """The workers of a broker; or, without one, a server and a worker of this machine's own.

    Args:
        broker: its URL, or None.
        local_slots: without a broker, the number of slots here.
    """

    def __init__(self, broker: str | None, *, local_slots: int | None = None, timing: Timing = Timing()) -> None:
        self._timing = timing
        self.local_slots = local_slots
        #: The URL of the experiment's own checkpoint store, or empty for none; None where the settings say which.
        self.store: str | None = None
        self._broker = broker
        self._server: _Server | None = None
        #: The worker that was started ahead, until it is told what to do.
        self._worker: PrivateWorker | None = None
        #: Releases the server.
        self._held = ExitStack()

    @property
    def has_own_worker(self) -> bool:
        """Whether trials run on this machine alone, on a worker that the driver starts."""
        return self._broker is None

    @property
    def is_known(self) -> bool:
        """Whether there is a server without the experiment's folder."""
        return self._broker is not None or server_url() is not None

    @property
    def is_private(self) -> bool:
        """Whether the server is this run's own, so that nobody else can have written to it."""
        return self._server is None or self._server.is_private

    @property
    def shown(self) -> str:
        """The server, for people."""
        return "this machine" if self._server is None or self.is_private else redact(self._server.url)

    def definition(self, name: str, folder: Path) -> Definition | None:
        """Return an experiment's definition, or None when neither server nor folder has it.

        The connection stays.

        Raises:
            BrokerUnavailable: there is no Redis, it refuses the password, or is too old.
            MessageVersionError: the stored definition can't be decoded.
        """
        kept = RedisJournal(self.connect(folder).client, name, patience_s=self._timing.patience_s).definition()
        if kept is None:
            with contextlib.suppress(JournalGone):
                kept = definition_in(JournalFile(folder / JOURNAL_FILE), name)
        return None if kept is None else decode_definition(name, kept)

    def experiments(self) -> list[str]:
        """Return the names of the experiments on the server, newest first."""
        assert self._server is not None  # noqa: S101 - who asks has looked for one
        return experiments_on(self._server.client, patience_s=self._timing.patience_s)

    def new_name(self, stem: str, *, store: Store | None = None, sleep: Callable[[float], None] = time.sleep) -> str:
        """Take the default name of a new experiment, as ``take_name`` does.

        Raises:
            as ``take_name``.
        """
        if (url := self._broker or server_url()) is None:
            return take_name(stem, store=store)
        # A connection of its own: none may be open when ``prepare`` forks.
        with contextlib.closing(_reach(url, sleep, self._timing)) as client:
            return take_name(stem, client, store=store, patience_s=self._timing.patience_s)

    def close(self) -> None:
        """Close the connection, and end a server that was started for it."""
        self._held.close()

    def open(self, settings: Settings, folder: Path, stack: ExitStack, interrupts: Interrupts) -> DriverContext:
        """Connect, and take the experiment's lock.

        Raises:
            BrokerUnavailable: there is no Redis, it refuses the password, or is too old.
            NameTaken: a living driver, or an experiment with another definition, has the name.
            StoreUnavailable: the checkpoint store can't be reached or written from here.
            InsufficientResources: no worker offers what a trial asks for, and trials may not wait; or this machine
                can't.
            ConfigurationError: a trial is to run on several workers, and this machine alone is one.
        """
        stack.callback(self._held.close)
        self.prepare(settings, folder, stack)
        server = self.connect(folder, sleep=interrupts.sleep)
        broker, client, is_local = server.url, server.client, server.is_local
        if settings.project is not None and not is_local:
            check_key(os.environ.get(KEY_VARIABLE, ""), settings.project.needs_key)
        writer = DefinitionWriter(settings, "" if is_local else broker)
        journal = RedisJournal(client, settings.name, patience_s=self._timing.patience_s)
        holder = secrets.token_hex(8)
        _learn(writer, journal, folder)
        take_lock(journal, holder, sleep=interrupts.sleep)
        stack.callback(unless_away, journal.unlock, holder)
        make_folder(folder)
        store = _open_store(writer, folder / CHECKPOINTS if is_local else None, known=self.store)
        clock = ServerClock(client)
        bundles, exchange = (
            BundleFolder(folder),
            CodeExchange(client, settings.name, patience_s=self._timing.patience_s),
        )
        writer.find_bundle = lambda digest: bundles.find(digest) or exchange.bundle(digest)
        writer.read_code()
        if settings.overwrites:
            if is_local:
                # Nothing is deleted for an experiment that could never run here.
                slot_settings(settings.resources_for_all(), self.local_slots)
            stays = [DRIVER, *((SERVER_FOLDER, CHECKPOINTS) if is_local else ())]
            if self._worker is not None:
                stays.append(self._worker.log.name)
            _delete(journal, folder, store if is_local else _claim_store(store, broker, settings.name), stays)
        if store is not None:
            claim(store, client, settings.name, patience_s=self._timing.patience_s)
            # A run on this machine alone has no journal that others keep in memory.
            journal.chapter_store = None if is_local else store
        kept = journal.definition()
        if kept is None:
            # The server may have lost the experiment; its driver notices that.
            kept = definition_in(JournalFile(folder / JOURNAL_FILE), settings.name)
        if kept is None and is_local:
            # Nothing is begun that could never run here.
            slot_settings(settings.resources_for_all(), self.local_slots)
        definition = writer.definition(kept)
        _keep_code(writer, definition, folder)
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
        _expect(settings, backend)
        if not is_local:
            _check_offer(settings, backend)
        return DriverContext(
            journal=journal,
            backend=backend,
            clock=clock,
            holder=holder,
            copy=JournalFile(folder / JOURNAL_FILE),
            driver=_describe_driver(this_owner(account_of(client))),
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
        """Start what runs trials here, where there is to be something."""
        server = self._server
        if server is None or not server.is_local:
            return None
        least_bytes = min(resources.shared_bytes for resources in settings.expected)
        slots = slot_settings(needed(settings.resources_for_all(), definition), self.local_slots, least_bytes)
        if settings.spec.is_carried and self._worker is None:
            raise TrainableNotFound(
                f"trainable {settings.spec.name!r} was in the memory of the program that began the experiment, and in "
                f"no file: run that program again with name={settings.name!r}, which continues the experiment"
            )
        worker, self._worker = self._worker or PrivateWorker(folder), None
        ahead, timing = (settings.name, digest), self._timing
        worker.begin(
            server.url, code_root=settings.code_root, slots=slots, ahead=ahead, code_key=code_key, timing=timing
        )
        return worker

    def prepare(self, settings: Settings, folder: Path, stack: ExitStack) -> None:
        """Start the worker of a new local experiment, which gets ready while the server starts.

        The importer of its program is a fork of this process, if that has no thread and no open file. An experiment
        that exists may have ended, or be deleted soon, and its worker starts later, unless that importer has the
        trainable itself.

        Raises:
            TrainableNotFound: only a fork of this process could have the trainable, and it can't be forked.
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
        """Return the server, with a connection to it; once."""
        if self._server is None:
            url, is_local, is_private = self._find(folder)
            client = _reach(url, sleep, self._timing)
            self._held.callback(client.close)
            self._server = _Server(url, is_local, is_private, client)
        return self._server

    def _find(self, folder: Path) -> tuple[str, bool, bool]:
        """Return the server's URL, whether to start a worker here, and whether the server is this run's."""
        if self._broker is not None:
            return self._broker, False, False
        if (url := server_url()) is not None:
            return url, True, False
        binary = find_binary(folder)
        make_folder(folder)
        server = EmbeddedServer.start(folder, binary=binary, timing=self._timing)
        self._held.callback(server.stop)
        return server.url, True, True


def _reach(url: str, sleep: Callable[[float], None], timing: Timing) -> RedisClient:
    """Connect; a server that is away is waited for as long as by a driver that runs."""
    deadline = time.monotonic() + timing.patience_s
    is_said = False
    while True:
        try:
            return connect(url, timing=timing, role="driver")
        except BrokerUnavailable as error:
            if not error.may_pass or time.monotonic() >= deadline:
                raise
            if not is_said:
                logger.warning("%s; trying again for %g s", error, timing.patience_s)
                is_said = True
        sleep(RETRY_MAX_S)


class BackendDeployment:
    """The deployment on a given backend, such as a simulation or a backend of the user.

    Args:
        backend: the backend.
    """

    def __init__(self, backend: Backend) -> None:
        self.local_slots = None
        self.has_own_worker = False
        self.is_simulated = is_simulated(backend)
        self._backend = backend

    def close(self) -> None:
        """Do nothing: sessions close what they opened."""

    def new_name(self, stem: str, *, store: Store | None = None, sleep: Callable[[float], None] = time.sleep) -> str:
        """Take the default name of a new experiment. Only this machine knows its experiments."""
        return take_name(stem, store=store)

    def prepare(self, settings: Settings, folder: Path, stack: ExitStack) -> None:
        """Do nothing: the backend starts its workers."""

    def open(self, settings: Settings, folder: Path, stack: ExitStack, interrupts: Interrupts) -> DriverContext:
        """Take the experiment's lock.

        Raises:
            NameTaken: a living driver, or an experiment with another definition, has the name.
            InsufficientResources: no worker offers what a trial asks for, and trials may not wait.
            StoreUnavailable: the checkpoint store can't be reached or written from here.
        """
        if settings.project is not None and not self.is_simulated:
            raise ConfigurationError("Process(bundle=…) is for a broker's workers, or this machine's: leave it out")
        backend = self._backend.open(settings.name, settings.expected[0])
        stack.callback(backend.close)
        _expect(settings, backend)
        _check_offer(settings, backend)
        journal, writer = backend.journal, DefinitionWriter(settings)
        holder = secrets.token_hex(8)
        _learn(writer, journal, folder)
        take_lock(journal, holder)
        stack.callback(journal.unlock, holder)
        make_folder(folder)
        store = None
        if not self.is_simulated:
            writer.read_code()
            store = _open_store(writer, None)
        if settings.overwrites:
            _delete(journal, folder, store)
        kept = journal.definition()
        definition = writer.definition(kept)
        _keep_code(writer, definition, folder)
        owner = NOBODY if self.is_simulated else this_owner()
        return DriverContext(
            journal=journal,
            backend=backend,
            clock=backend.clock,
            holder=holder,
            copy=JournalFile(folder / JOURNAL_FILE),
            driver=SIMULATION if self.is_simulated else _describe_driver(owner),
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


def _backend_on(server: _Server) -> type[QueueBackend]:
    """Return the backend for a server.

    Where the driver starts its worker itself, Celery has nothing to do.
    """
    if server.is_local:
        return LocalBackend
    from mqtune.backends.celery import CeleryBackend  # noqa: PLC0415 - celery's import takes a third of a second

    return CeleryBackend


def _learn(writer: DefinitionWriter, journal: Journal, folder: Path) -> None:
    """Read what a new experiment learns from.

    It is read before the lock is taken, as it may outlast the lock, and before anything is deleted.
    """
    is_known = journal.definition() is not None or (folder / JOURNAL_FILE).is_file()
    if writer.settings.overwrites or not is_known:
        writer.learnt()


def _expect(settings: Settings, backend: BackendSession) -> None:
    """Have the backend count all slots that trials may ask for.

    Raises:
        ConfigurationError: the backend does not support the trials' slots, or can't tell them apart.
    """
    for check in settings.checks:
        check(settings.expected, backend)
    if settings.asks is None:
        return
    if not isinstance(backend, TakesResources):
        raise ConfigurationError(
            f"resources={settings.asks.name}: trials of this backend, {type(backend).__name__}, all get the same: give "
            f"mqtune.Resources(…)"
        )
    for resources in settings.expected:
        backend.expect(resources)


def _check_offer(settings: Settings, backend: BackendSession) -> None:
    """Check that a worker has a fitting slot, even a busy one, if trials may not wait for one."""
    if not settings.run.queue_trials:
        backend.refresh()
        if not backend.slots:
            raise InsufficientResources(backend.why_no_slot())


def _open_store(writer: DefinitionWriter, usual: Path | None, *, known: str | None = None) -> CheckpointStore | None:
    """Return the experiment's checkpoint store, which is there now, or None for none.

    Args:
        writer: has the settings. It gets the URL of the store.
        usual: the folder that is used if the user names none.
        known: the URL in the definition of the experiment, or empty for none. None if the settings say which.
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


def _keep_code(writer: DefinitionWriter, definition: Definition, folder: Path) -> None:
    """Keep the trainable's files as they are, so that trials run them while they are edited."""
    for name, wanted in definition["code_files"].items():
        if name in writer.sources:
            keep_source(folder / CODE_FOLDER, wanted, writer.sources[name])


def _claim_store(store: CheckpointStore | None, url: str, name: str) -> CheckpointStore | None:
    """Return a store that no experiment of this name on another server can have.

    Return None for any other, and for none.
    """
    if store is None or not is_shared(store, tenant_on(url, name)):
        return store
    logger.warning(
        "the checkpoints in %s stay: an experiment of this name on another broker may have them too", store.describe()
    )
    return None


def _delete(journal: Journal, folder: Path, store: CheckpointStore | None, stays: Sequence[str] = ()) -> None:
    """Delete an experiment from its server, its folder and its store. This process has its lock.

    These stay: a worker's log, and the folders of a running server, of a store, which is emptied, and of the output of
    submitted scripts, which may be this process's.
    """
    written = [event for events in driver_events(readable_entries(journal)).values() for event in events]
    journal.erase(list(dict.fromkeys(event.trial for event in written if isinstance(event, TrialStaged))))
    for path in folder.iterdir():
        if path.name in stays:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if store is not None:
        for checkpoint in store.ids():
            store.delete(checkpoint)


def unless_away(action: Callable[..., None], *arguments: object) -> None:
    """Do it, unless there is no server to do it on."""
    with contextlib.suppress(BrokerUnavailable):
        action(*arguments)


def _describe_driver(owner: Owner) -> str:
    return f"process {os.getpid()} of {owner}"


def is_simulated(backend: object) -> bool:
    """Whether a backend is of simulated workers."""
    from mqtune.backends.simulated import Simulated  # noqa: PLC0415 - nobody else needs it

    return isinstance(backend, Simulated)


def deployment_of(backend: object, checkpoints: Checkpoints = Checkpoints(), timing: Timing = Timing()) -> Deployment:
    """Return where a user wants an experiment to run.

    Args:
        backend: a broker's URL, ``Local(…)``, a backend, or None: ``$MQTUNE_BROKER``, or this machine alone.
        checkpoints: the options of checkpoints, which name the store.

    Raises:
        ConfigurationError: it is something else, or does not go with the store.
    """
    if backend is None:
        backend = os.environ.get("MQTUNE_BROKER") or Local()
    if isinstance(backend, str) and backend.strip():
        return BrokerDeployment(backend, timing=timing)
    if isinstance(backend, Local):
        return BrokerDeployment(None, local_slots=backend.slots, timing=timing)
    if isinstance(backend, BrokerDeployment):
        # ``attach`` has connected already, to read the definition.
        return backend
    if is_simulated(backend) and checkpoints.store is not None:
        raise ConfigurationError("simulated workers store no checkpoints: leave out Checkpoints(store=…)")
    if isinstance(backend, Backend) and not isinstance(backend, type):
        return BackendDeployment(backend)
    raise ConfigurationError(
        f"backend={backend!r} is not a backend; give the URL of a broker, mqtune.Local(slots=…), mqtune.Simulated(…), "
        f"an "
        "object with the methods of mqtune.backends.base.Backend, or leave it out for $MQTUNE_BROKER or this machine"
    )
