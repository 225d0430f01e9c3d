"""The journal: all events of an experiment, and its attempts' leases and intents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.journal.base import (
        FENCED as FENCED,
        WAIT as WAIT,
        Assignment as Assignment,
        Chapter as Chapter,
        Claim as Claim,
        Entry as Entry,
        Fared as Fared,
        Grant as Grant,
        Journal as Journal,
        LastAttempt as LastAttempt,
        Others as Others,
        Refusal as Refusal,
        Reserved as Reserved,
        Segment as Segment,
        ServerState as ServerState,
        Unclaimed as Unclaimed,
        entry_order as entry_order,
        entry_time as entry_time,
    )
    from mqtune.journal.exchange.code import CodeExchange as CodeExchange
    from mqtune.journal.exchange.fleet import Fleet as Fleet
    from mqtune.journal.exchange.logs import (
        LOGS as LOGS,
        LogChunk as LogChunk,
        LogExchange as LogExchange,
        LogQuestion as LogQuestion,
        LogStream as LogStream,
    )
    from mqtune.journal.files.chapters import (
        chapter_bytes as chapter_bytes,
        checkpoints_in as checkpoints_in,
        cut_chapters as cut_chapters,
        keep_chapter as keep_chapter,
    )
    from mqtune.journal.files.copy import (
        JOURNAL_FILE as JOURNAL_FILE,
        JournalFile as JournalFile,
        JournalReader as JournalReader,
        entries_of as entries_of,
        gone as gone,
    )
    from mqtune.journal.files.reading import (
        begins as begins,
        entries_after as entries_after,
        readable_entries as readable_entries,
    )
    from mqtune.journal.lock import take_lock as take_lock
    from mqtune.journal.memory import MemoryJournal as MemoryJournal
    from mqtune.journal.memory_server import MemoryServer as MemoryServer
    from mqtune.journal.redis import (
        RedisJournal as RedisJournal,
        experiments_on as experiments_on,
        number as number,
        room_of as room_of,
    )
    from mqtune.journal.server.connection import (
        CONNECT_TIMEOUT_S as CONNECT_TIMEOUT_S,
        RedisClient as RedisClient,
        account_of as account_of,
        connect as connect,
        open_client as open_client,
        redact as redact,
        timing_of as timing_of,
    )
    from mqtune.journal.server.owner import person as person
    from mqtune.journal.server.retry import retrying as retrying
    from mqtune.journal.server.room import Room as Room
    from mqtune.journal.server.script import script_in as script_in
    from mqtune.journal.states import State as State, States as States, ask_each as ask_each
    from mqtune.journal.stream import naming as naming

#: The names that other folders and tests may use, by the module that defines them.
_NAMES = {
    "server.clock": ("ServerClock",),
    "server.connection": (
        "CONNECT_TIMEOUT_S",
        "RedisClient",
        "account_of",
        "celery_tls",
        "celery_url",
        "connect",
        "open_client",
        "redact",
        "timing_of",
    ),
    "server.identity": ("identify",),
    "server.owner": ("person",),
    "server.retry": ("RETRY_MAX_S", "retrying"),
    "server.room": ("Room",),
    "server.script": ("script_in",),
    "server.sentinel": ("Sentinels",),
    "exchange.code": ("CodeExchange",),
    "exchange.fleet": ("ControlChannel", "Fleet", "LOOK"),
    "exchange.local_queue": ("LocalQueue",),
    "exchange.logs": (
        "CHUNK_BYTES",
        "LOGS",
        "LogChunk",
        "LogExchange",
        "LogQuestion",
        "LogStream",
        "made_mark",
        "output_path",
    ),
    "base": (
        "Answer",
        "Assignment",
        "BROKEN_S",
        "Chapter",
        "Claim",
        "DriverState",
        "EndedBy",
        "Entry",
        "FENCED",
        "Fared",
        "GAP",
        "Grant",
        "Intended",
        "Journal",
        "LastAttempt",
        "OnLoss",
        "Order",
        "Others",
        "Refusal",
        "Reserved",
        "Segment",
        "ServerState",
        "Unclaimed",
        "AttemptCheck",
        "WAIT",
        "entry_order",
        "entry_time",
        "revocation",
    ),
    "files.chapters": ("chapter_bytes", "checkpoints_in", "cut_chapters", "keep_chapter"),
    "files.copy": (
        "JOURNAL_FILE",
        "JournalFile",
        "JournalReader",
        "definition_in",
        "entries_of",
        "gone",
        "lacks_entries",
    ),
    "files.reading": ("begins", "entries_after", "readable_entries"),
    "lock": ("take_lock",),
    "memory": ("MemoryJournal",),
    "memory_server": ("MemoryServer", "TrialState"),
    "redis": ("RedisJournal", "experiments_on", "number", "renew_all", "room_of"),
    "states": ("State", "States", "ask_each"),
    "stream": ("naming",),
}
__getattr__ = facade_of(__name__, _NAMES)
