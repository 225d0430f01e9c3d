"""Moves or copies an experiment from its server into a folder. Its next driver restores it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from mqtune.checkpoints import open_store
from mqtune.checkpoints.files import sync
from mqtune.core.errors import MqtuneError
from mqtune.core.machine import ARCHIVED, DICTS, replace_file
from mqtune.driver import BundleFolder, tenant_on
from mqtune.journal import (
    CONNECT_TIMEOUT_S,
    JOURNAL_FILE,
    CodeExchange,
    JournalFile,
    JournalReader,
    RedisJournal,
    connect,
)
from mqtune.results.results import Results
from mqtune.services.upkeep.deletion import messages_of, remains_of, remove_messages, undriven
from mqtune.services.upkeep.marks import give_to_archive
from mqtune.trainable import is_digest


def complete_copy(journal: RedisJournal, folder: Path) -> Results:
    """Copy the rest of a journal into a folder, as its next driver would. Return the results.

    Raises:
        MqtuneError: the folder can't be written.
    """
    with contextlib.closing(JournalFile(folder / JOURNAL_FILE)) as copy:
        reader = JournalReader(journal, copy)
        reader.catch_up()
        if not reader.complete():
            raise MqtuneError(f"{folder} can't be written: make room, and try again")
    results = Results.load(folder)
    results.save()
    return results


def archive(name: str, url: str, folder: Path) -> Results:
    """Write an experiment into its folder, and delete it on its server.

    After a failure it may be called again. Folder checkpoints stay in their store. Output of trials stays on the
    workers' machines.

    Raises:
        NameTaken: a living driver has it.
        AccessDenied: the account is not a driver's.
        ChapterUnavailable: its oldest events are in unreadable chapters; nothing was deleted.
        MqtuneError: the folder can't be written; nothing was deleted.
    """
    with undriven(name, url) as journal:
        results = _write(journal, url, folder)
        # Data that is not on the disk yet would be lost with the machine.
        sync(str(folder / JOURNAL_FILE))
        remove_messages(messages_of(name, url), url)
        tenant = tenant_on(url, name)
        remains = remains_of(journal, tenant)
        if remains.store:
            give_to_archive(open_store(remains.store), tenant)
        journal.forget(remains.trials)
    replace_file(folder / ARCHIVED, [])
    return results


def copy_out(name: str, url: str, folder: Path) -> Results:
    """Write an experiment into a folder, as ``archive`` does. The server keeps it.

    Raises:
        NameTaken: a living driver has it.
        AccessDenied: the account is not a driver's.
        MqtuneError: the folder can't be written.
    """
    with undriven(name, url) as journal:
        return _write(journal, url, folder)


def _write(journal: RedisJournal, url: str, folder: Path) -> Results:
    folder.mkdir(parents=True, exist_ok=True)
    results = complete_copy(journal, folder)
    _write_dicts(journal, folder)
    _write_code(results, url)
    return results


def _write_dicts(journal: RedisJournal, folder: Path) -> None:
    for checkpoint in journal.checkpoints():
        data = journal.checkpoint(checkpoint)
        if data is not None:
            (folder / DICTS).mkdir(exist_ok=True)
            replace_file(folder / DICTS / checkpoint, [data])


def _write_code(results: Results, url: str) -> None:
    attempts = [attempt for trial in results for attempt in trial.attempts]
    digests = {results.definition.get("bundle"), *(attempt.environment.get("bundle") for attempt in attempts)}
    kept = BundleFolder(results.folder)
    with contextlib.closing(connect(url, role="driver")) as client:
        exchange = CodeExchange(client, results.name, patience_s=CONNECT_TIMEOUT_S)
        for digest in filter(is_digest, digests):
            if kept.find(str(digest)) is None and (bundle := exchange.bundle(str(digest))) is not None:
                kept.keep(bundle)
                if kept.find(str(digest)) is None:
                    raise MqtuneError(f"{results.folder} can't be written: make room, and try again")
