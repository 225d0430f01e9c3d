"""Moves an experiment from its server into a folder, from which its next driver brings it back; or copies it there."""

from __future__ import annotations

import contextlib
from pathlib import Path

from mqtune.checkpoints import open_store
from mqtune.checkpoints.files import sync
from mqtune.core.errors import MqtuneError
from mqtune.core.machine import ARCHIVED, DICTS, replace_file
from mqtune.driver.bundling import BundleFolder
from mqtune.driver.deletion import messages_of, remains_of, remove_messages, undriven
from mqtune.driver.tenancy import give_to_archive, tenant_on
from mqtune.journal.code import CodeExchange
from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect
from mqtune.journal.copy import JOURNAL_FILE, JournalFile, JournalReader
from mqtune.journal.redis import RedisJournal
from mqtune.results.results import Results
from mqtune.trainable.bundle import is_digest


def complete_copy(journal: RedisJournal, folder: Path) -> Results:
    """Have a folder hold all of a journal, as its next driver would, and return the results.

    Raises:
        MqtuneError: it can't be written.
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
    """Write what a server has of an experiment into its folder, and delete it there.

    After a failure it may be called again. Checkpoints that are folders stay in their store, and what trials have
    printed stays on its machines.

    Raises:
        NameTaken: a living driver has it.
        AccessDenied: the account is no driver's.
        ChapterUnavailable: its oldest events are in chapters that can't be read from here; nothing was deleted.
        MqtuneError: the folder can't be written; nothing was deleted.
    """
    with undriven(name, url) as journal:
        results = _write(journal, url, folder)
        # What is only on its way to the disk would be lost with the machine.
        sync(str(folder / JOURNAL_FILE))
        remove_messages(messages_of(name, url), url)
        tenant = tenant_on(url, name)
        found = remains_of(journal, tenant)
        if found.store:
            give_to_archive(open_store(found.store), tenant)
        journal.forget(found.trials)
    replace_file(folder / ARCHIVED, [])
    return results


def copy_out(name: str, url: str, folder: Path) -> Results:
    """Write what a server has of an experiment into a folder, as ``archive`` does; the server keeps it.

    Raises:
        NameTaken: a living driver has it.
        AccessDenied: the account is no driver's.
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
    """Write the bundles that a driver on another machine has brought."""
    attempts = [attempt for each in results for attempt in each.attempts]
    digests = {results.definition.get("bundle"), *(attempt.environment.get("bundle") for attempt in attempts)}
    kept = BundleFolder(results.folder)
    with contextlib.closing(connect(url, role="driver")) as client:
        exchange = CodeExchange(client, results.name, patience_s=CONNECT_TIMEOUT_S)
        for digest in filter(is_digest, digests):
            if kept.find(str(digest)) is None and (bundle := exchange.bundle(str(digest))) is not None:
                kept.keep(bundle)
                if kept.find(str(digest)) is None:
                    raise MqtuneError(f"{results.folder} can't be written: make room, and try again")
