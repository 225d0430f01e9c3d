"""The journal: every event of an experiment in one stream, and the leases and intents of its attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.journal.acl import (
        ROLES as ROLES,
        Role as Role,
        account as account,
        password_hash as password_hash,
        rules_of as rules_of,
    )
    from mqtune.journal.audit import AuditEntry as AuditEntry, newest_entries as newest_entries
    from mqtune.journal.base import (
        BROKEN_S as BROKEN_S,
        FENCED as FENCED,
        GAP as GAP,
        WAIT as WAIT,
        Answer as Answer,
        Assignment as Assignment,
        Chapter as Chapter,
        Claim as Claim,
        DriverState as DriverState,
        EndedBy as EndedBy,
        Entry as Entry,
        Fared as Fared,
        Grant as Grant,
        Intended as Intended,
        Journal as Journal,
        LastAttempt as LastAttempt,
        OnLoss as OnLoss,
        Order as Order,
        Others as Others,
        Refusal as Refusal,
        Seated as Seated,
        Segment as Segment,
        ServerState as ServerState,
        Unclaimed as Unclaimed,
        UnderWay as UnderWay,
        entry_time as entry_time,
        revocation as revocation,
    )
    from mqtune.journal.chapters import (
        chapter_bytes as chapter_bytes,
        cut_chapters as cut_chapters,
        keep_chapter as keep_chapter,
    )
    from mqtune.journal.clock import ServerClock as ServerClock
    from mqtune.journal.code import CodeExchange as CodeExchange
    from mqtune.journal.connection import (
        RedisClient as RedisClient,
        celery_tls as celery_tls,
        celery_url as celery_url,
        connect as connect,
        open_client as open_client,
        redact as redact,
    )
    from mqtune.journal.copy import (
        JOURNAL_FILE as JOURNAL_FILE,
        JournalFile as JournalFile,
        JournalReader as JournalReader,
        entries_of as entries_of,
        lacks_entries as lacks_entries,
    )
    from mqtune.journal.demands import Demands as Demands
    from mqtune.journal.fleet import LOOK as LOOK, ControlChannel as ControlChannel, Fleet as Fleet
    from mqtune.journal.follow import Follower as Follower
    from mqtune.journal.identity import identify as identify
    from mqtune.journal.local_queue import LocalQueue as LocalQueue
    from mqtune.journal.lock import take_lock as take_lock
    from mqtune.journal.logs import (
        CHUNK_BYTES as CHUNK_BYTES,
        LOGS as LOGS,
        LogChunk as LogChunk,
        LogExchange as LogExchange,
        LogQuestion as LogQuestion,
        LogStream as LogStream,
        made_mark as made_mark,
        output_path as output_path,
    )
    from mqtune.journal.memory import MemoryJournal as MemoryJournal
    from mqtune.journal.memory_server import MemoryServer as MemoryServer, TrialState as TrialState
    from mqtune.journal.quotas import Quota as Quota, Quotas as Quotas
    from mqtune.journal.redis import (
        RETRY_MAX_S as RETRY_MAX_S,
        RedisJournal as RedisJournal,
        experiments_on as experiments_on,
        renew_all as renew_all,
        retrying as retrying,
    )
    from mqtune.journal.restore import Restorer as Restorer, bring_back as bring_back
    from mqtune.journal.room import Room as Room
    from mqtune.journal.sentinel import Sentinels as Sentinels
    from mqtune.journal.submissions import (
        MOST_SHORT as MOST_SHORT,
        Submissions as Submissions,
        SubmissionState as SubmissionState,
    )

#: The names that other folders and tests may use, by the module that defines them.
_NAMES = {
    "acl": ("ROLES", "Role", "account", "password_hash", "rules_of"),
    "audit": ("AuditEntry", "newest_entries"),
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
        "Seated",
        "Segment",
        "ServerState",
        "Unclaimed",
        "UnderWay",
        "WAIT",
        "entry_time",
        "revocation",
    ),
    "chapters": ("chapter_bytes", "cut_chapters", "keep_chapter"),
    "clock": ("ServerClock",),
    "code": ("CodeExchange",),
    "connection": (
        "RedisClient",
        "celery_tls",
        "celery_url",
        "connect",
        "open_client",
        "redact",
    ),
    "copy": ("JOURNAL_FILE", "JournalFile", "JournalReader", "entries_of", "lacks_entries"),
    "demands": ("Demands",),
    "fleet": ("ControlChannel", "Fleet", "LOOK"),
    "follow": ("Follower",),
    "identity": ("identify",),
    "local_queue": ("LocalQueue",),
    "lock": ("take_lock",),
    "logs": ("CHUNK_BYTES", "LOGS", "LogChunk", "LogExchange", "LogQuestion", "LogStream", "made_mark", "output_path"),
    "memory": ("MemoryJournal",),
    "memory_server": ("MemoryServer", "TrialState"),
    "quotas": ("Quota", "Quotas"),
    "redis": ("RETRY_MAX_S", "RedisJournal", "experiments_on", "renew_all", "retrying"),
    "restore": ("Restorer", "bring_back"),
    "room": ("Room",),
    "sentinel": ("Sentinels",),
    "submissions": ("MOST_SHORT", "SubmissionState", "Submissions"),
}
__getattr__ = facade_of(__name__, _NAMES)
