"""Permissions of each role on a shared Redis, as rules for its access control (ACL).

A rule is a *selector*: some commands, on some keys and channels. A command is allowed if a single rule allows all of
it. For example, a worker may subscribe to Celery's remote control but not publish on it. Selectors, and patterns for
reading and writing, need Redis 7.0 or Valkey. A server refuses a rule with an unknown command, so rules use only
commands of Redis 7.0. A script's commands are held to its caller's rules.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from mqtune.core.errors import ConfigurationError
from mqtune.core.keys import (
    ALL_EXPERIMENTS,
    AUDIT,
    CONTROL_EXCHANGE,
    DEMANDS,
    EVENT_EXCHANGE,
    EXPERIMENTS,
    FLEET,
    IDENTITY,
    LAST_NUMBERS,
    QUOTAS,
    SHARES,
    SUBMISSIONS,
    UNACKED,
    WORKERS,
    ExperimentKeys,
    control_channel,
    drain_key,
    name_key,
    quota_key,
    worker_key,
)
from mqtune.core.resources import EVERY, QUEUES, check_experiments
from mqtune.core.trial import AttemptEnd

Role = Literal["driver", "worker", "operator", "monitor"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

#: Commands of every client.
_CONNECTION: Final = (
    "auth hello ping echo quit select client|setname info time multi exec discard unwatch unsubscribe punsubscribe role"
)
_USER: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")

#: Celery's keys and channels, in kombu's names for Redis: the listeners of an exchange, and the lists for answers to
#: remote commands.
_BINDINGS: Final = ("_kombu.binding.", "_kombu.binding_permanent.")
_DEADLINES: Final = "_kombu.binding_deadlines"
_REMOTE: Final = f"{CONTROL_EXCHANGE}.pidbox"
_REPLIES: Final = f"*.reply.{_REMOTE}*"


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Commands that are allowed on some keys and channels.

    The prefixes ``%R~`` and ``%W~`` of a key allow only to read or to write it.
    """

    commands: str
    keys: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()

    def __str__(self) -> str:
        keys = [key if key.startswith("%") else f"~{key}" for key in self.keys]
        return " ".join(
            [*(f"+{name}" for name in self.commands.split()), *keys, *(f"&{name}" for name in self.channels)]
        )


#: Tables of listeners. Each listener renews its entry and removes expired ones.
_BOOKKEEPING: Final = AccessRule(
    "sadd srem smembers exists del zadd zrem zrangebyscore evalsha eval script|load script|exists",
    (*(f"{table}*" for table in _BINDINGS), _DEADLINES),
)
#: Unacknowledged messages. Each consumer scans them; mqtune's messages are never among them.
_HANDED_OUT: Final = AccessRule("hset hget hdel zadd zrem zrange watch set get del evalsha", (*UNACKED.values(),))

#: Quotas, and the lists of attempts under each. Every account may count these, but not read their owners.
_READS_QUOTAS: Final = (f"%R~{QUOTAS}", f"%R~{quota_key('*')}")


#: Only an operator's account has this rule, which identifies it.
_OPERATOR: Final = AccessRule("hexists", (f"%R~{QUOTAS}",))


#: Accounts that can end or change other people's work write to the audit stream.
_AUDITED: Final = AccessRule("xadd", (f"%W~{AUDIT}",))


def _drains(db: int) -> list[AccessRule]:
    return [AccessRule("get set", (drain_key("*"),)), AccessRule("publish", channels=(control_channel("*", db),))]


def rules_of(
    role: Role, *, experiments: str = EVERY, db: int = 0, remote_control: bool = False, all_keys: bool = False
) -> list[AccessRule]:
    """Return the rules of an account of a role. Beside these, it may only connect.

    Args:
        experiments: names of its experiments, with ``*`` for any characters.
        db: database number, a part of Celery's channel names.
        remote_control: whether a monitor may send Celery's remote commands, as Flower does. They can end trials and
            workers.
        all_keys: whether a driver may see the names of all keys, including other programs'. ``mqtune gc``
            needs it.

    Raises:
        ConfigurationError: *experiments* is not a pattern of names, or the role can't have remote commands or key
            names.
    """
    check_experiments(experiments)
    if remote_control and role != "monitor":
        raise ConfigurationError(
            f"a {role} sends no remote commands, so there is nothing to allow: give --remote-control to a monitor"
        )
    if all_keys and (role, experiments) != ("driver", EVERY):
        raise ConfigurationError(
            "--all-keys is for a driver of all experiments: mqtune fleet acl driver --all-keys, without --experiments"
        )
    kept = ExperimentKeys(experiments, db)
    match role:
        case "driver":
            looks = [AccessRule("scan"), AccessRule("memory|usage", (f"%R~{ALL_EXPERIMENTS}",))] if all_keys else []
            # A team could set another server's id, and get that server's checkpoints counted as its own.
            names = [AccessRule("set", (IDENTITY,))] if experiments == EVERY else []
            audits = [_AUDITED, *_audits(experiments)]
            return [*_driver(kept, _queues(experiments), db), *names, *looks, *audits]
        case "worker":
            return _worker(kept, _queues(experiments), _quotas(experiments), db)
        case "operator":
            # A team's operator can't set quotas, drain workers or request output: other teams share them.
            sets = [AccessRule("hset hdel", (QUOTAS,)), *_drains(db), *_output(kept)] if experiments == EVERY else []
            looks = _monitor(kept, _queues(experiments), db, remote_control=False)
            return [*_requests(kept), *_halts(kept), *looks, _OPERATOR, _AUDITED, *sets, *_audits(experiments)]
        case "monitor":
            return [
                *_monitor(kept, _queues(experiments), db, remote_control=remote_control),
                *_audits(experiments),
            ]


def _audits(experiments: str) -> list[AccessRule]:
    """Return the rules for reading the audit stream, which names all teams' experiments."""
    return [AccessRule("xrevrange", (f"%R~{AUDIT}",))] if experiments == EVERY else []


def _driver(kept: ExperimentKeys, queues: tuple[str, ...], db: int) -> list[AccessRule]:
    everything = (
        kept.driver,
        kept.meta,
        kept.journal,
        kept.chapters,
        kept.restored("*"),
        kept.leases,
        kept.staged,
        kept.checkpoints,
        kept.requests,
        kept.code,
        kept.submission,
        kept.submitted_code,
        kept.trial("*"),
    )
    return [
        AccessRule("evalsha eval", (*everything, EXPERIMENTS, SUBMISSIONS)),
        AccessRule(
            "hget hmget hset hsetnx hdel hexists hkeys hstrlen zadd zrem zscore zrange zrangebyscore xadd xrange "
            "xrevrange xtrim exists del rename expire pexpire persist",
            everything,
        ),
        # One blocking read covers both.
        AccessRule("xread", (f"%R~{kept.journal}", f"%R~{FLEET}")),
        AccessRule("zadd zrem", (EXPERIMENTS,)),
        # Default names.
        AccessRule("hincrby", (LAST_NUMBERS,)),
        # Submitted scripts.
        AccessRule("zadd zrem zscore zrangebyscore", (SUBMISSIONS,)),
        AccessRule("publish", channels=(kept.metrics, control_channel("*", db))),
        *_output(kept),
        # The fleet, and orders to drain workers.
        AccessRule(
            "zrange zrangebyscore mget get xrevrange", tuple(f"%R~{key}" for key in (FLEET, WORKERS, worker_key("*")))
        ),
        AccessRule("get mget set del", (drain_key("*"),)),
        AccessRule("get", (f"%R~{IDENTITY}",)),
        # Demands and shares of each experiment, under a token in place of its name.
        AccessRule("evalsha eval", (DEMANDS, QUOTAS, SHARES)),
        AccessRule("hset hdel hgetall", (DEMANDS,)),
        AccessRule("hget hmget hset hdel del pexpire", (SHARES,)),
        AccessRule("hgetall zcount", _READS_QUOTAS),
        # Celery's messages: to send them, and to check whether they still wait.
        AccessRule("lpush lrange llen lrem", queues),
        AccessRule("sadd smembers", tuple(f"{table}{queue}" for table in _BINDINGS for queue in queues)),
        # The end of an attempt on a lost worker.
        AccessRule("publish", channels=(f"/{db}.{EVENT_EXCHANGE}/task.{AttemptEnd.LOST.value}",)),
        *_looks(kept),
    ]


def _worker(kept: ExperimentKeys, queues: tuple[str, ...], quotas: tuple[str, ...], db: int) -> list[AccessRule]:
    trials = kept.trial("*")
    return [
        *_requests(kept),
        AccessRule(
            "evalsha eval",
            (kept.meta, kept.journal, kept.leases, kept.staged, kept.checkpoints, kept.requests, trials, QUOTAS),
        ),
        # Quotas, and the attempts under them.
        AccessRule("hgetall zcount", _READS_QUOTAS),
        AccessRule("zadd zrem zcount zremrangebyscore expire", quotas),
        AccessRule("hget hmget hset", (kept.meta,)),
        AccessRule("hget hmget hset expire", (trials,)),
        AccessRule("hget hsetnx", (kept.checkpoints,)),
        AccessRule("hget hstrlen", (f"%R~{kept.code}",)),
        # The worker of a submitted script, for questions about its output.
        AccessRule("hmget", (f"%R~{kept.submission}",)),
        AccessRule("zadd zrem zcard", (kept.leases, kept.staged)),
        # The order of staged attempts.
        AccessRule("zrange", (f"%R~{kept.staged}",)),
        # Questions for output of trials, and the answers.
        AccessRule("lpop", (kept.asked("*"),)),
        AccessRule("rpush pexpire", (kept.log("*"),)),
        # Samples of usage.
        AccessRule("set", (f"%W~{kept.usage('*')}",)),
        # Its own entry in the fleet. It only listens to drivers.
        AccessRule("zadd zrem zrange zrangebyscore zremrangebyscore", (WORKERS,)),
        AccessRule("get mget set del", (worker_key("*"),)),
        AccessRule("get set del pttl", (name_key("*"),)),
        AccessRule("evalsha eval", (WORKERS, worker_key("*"), name_key("*"), drain_key("*"))),
        AccessRule("xadd", (FLEET,)),
        AccessRule("get del", (drain_key("*"),)),
        AccessRule("subscribe", channels=(control_channel("*", db),)),
        # Celery's messages: to receive them, and to requeue them at the worker's end. Its events. Remote commands and
        # answers to them.
        AccessRule("brpop llen lpush rpush", queues),
        _BOOKKEEPING,
        _HANDED_OUT,
        AccessRule("publish", channels=(f"/{db}.{EVENT_EXCHANGE}/*",)),
        AccessRule("psubscribe", channels=(f"/{db}.{_REMOTE}",)),
        AccessRule("llen exists del", (f"*.{_REMOTE}*",)),
        AccessRule("lpush", (_REPLIES,)),
    ]


def _monitor(kept: ExperimentKeys, queues: tuple[str, ...], db: int, *, remote_control: bool) -> list[AccessRule]:
    fleet = tuple(f"%R~{key}" for key in (FLEET, WORKERS, worker_key("*")))
    rules = [
        *_looks(kept),
        AccessRule("zrange zrangebyscore mget get xrange xrevrange", fleet),
        # Demands of experiments, under tokens in place of their names.
        AccessRule("hgetall zcount", (f"%R~{DEMANDS}", *_READS_QUOTAS)),
        # Numbers of running and waiting attempts, and waiting times. Numbers of messages in queues, not their content.
        AccessRule("zcard zrange", (f"%R~{kept.leases}", f"%R~{kept.staged}")),
        AccessRule("llen", tuple(f"%R~{queue}" for queue in queues)),
    ]
    if remote_control:
        # Flower listens to events, and requests them by a remote command.
        rules += [
            _BOOKKEEPING,
            _HANDED_OUT,
            AccessRule("llen", (f"%R~{QUEUES}",)),
            AccessRule("llen exists del", (f"{EVENT_EXCHANGE}.*",)),
            AccessRule("psubscribe", channels=(f"/{db}.{EVENT_EXCHANGE}/*",)),
            AccessRule("publish", channels=(f"/{db}.{_REMOTE}",)),
            AccessRule("brpop llen exists del pexpire", (_REPLIES,)),
        ]
    return rules


def _queues(experiments: str) -> tuple[str, ...]:
    """Return the queues of workers for these experiments.

    Workers for some experiments only have queues of their own. An account that may publish in a queue can read the
    waiting messages and their configs.
    """
    if experiments == EVERY:
        return (QUEUES,)
    # kombu has a list for each priority, with its number after two bytes.
    name = f"{QUEUES}@{experiments}"
    return name, f"{name}??[369]"


def _quotas(experiments: str) -> tuple[str, ...]:
    """Return key patterns of the quotas that count attempts of these experiments.

    For the experiments ``a-*`` the first key pattern matches the quotas for ``a-*`` and for narrower patterns, such as
    ``a-b*``. The others each match one wider quota: that for ``a*`` or ``*``. Other wider quotas, such as that for
    ``*-1``, are left out.
    """
    beginning = experiments.partition("*")[0]
    wider = [beginning[:length] for length in range(len(beginning) + 1)]
    return (quota_key(experiments), *(quota_key(rf"{pattern}\*") for pattern in wider))


def _requests(kept: ExperimentKeys) -> list[AccessRule]:
    return [
        AccessRule("evalsha eval", (kept.meta, kept.journal, kept.requests)),
        AccessRule("hget hset hdel hexists", (kept.meta, kept.requests)),
        AccessRule("xadd", (kept.journal,)),
        AccessRule("publish", channels=(kept.metrics,)),
    ]


def _output(kept: ExperimentKeys) -> list[AccessRule]:
    return [
        AccessRule("rpush pexpire", (kept.asked("*"),)),
        AccessRule("lpop", (kept.log("*"),)),
        AccessRule("hmget", (f"%R~{kept.trial('*')}",)),
    ]


def _halts(kept: ExperimentKeys) -> list[AccessRule]:
    return [
        AccessRule("evalsha eval", (kept.submission, SUBMISSIONS)),
        AccessRule("hget hset", (kept.submission,)),
        AccessRule("zrem zscore", (SUBMISSIONS,)),
    ]


def _looks(kept: ExperimentKeys) -> list[AccessRule]:
    return [
        AccessRule("xrange xrevrange xlen", (f"%R~{kept.journal}",)),
        AccessRule("memory|usage", (f"%R~{kept.journal}", f"%R~{kept.checkpoints}")),
        AccessRule("hget hmget", (f"%R~{kept.meta}", f"%R~{kept.chapters}", f"%R~{kept.submission}")),
        AccessRule("zrange zrevrange zscore", (f"%R~{EXPERIMENTS}", f"%R~{SUBMISSIONS}")),
        AccessRule("mget", (f"%R~{kept.usage('*')}",)),
        AccessRule("subscribe", channels=(kept.metrics,)),
    ]


def password_hash(password: str) -> str:
    """Return a password's hash, in the form of ACL rules."""
    return hashlib.sha256(password.encode()).hexdigest()


def account(user: str, hashed: str, rules: list[AccessRule], *, aclfile: bool = False) -> str:
    """Return the line that creates an account or changes its rules.

    The line is a command for redis-cli, or a line of an ACL file. The command adds a password and keeps earlier ones,
    so programs can change from one to the next. *hashed* is the password's SHA-256 in hex.

    Raises:
        ConfigurationError: the name or the hash is malformed.
    """
    if not _USER.fullmatch(user):
        raise ConfigurationError(
            f"user {user!r} can't name an account; use letters, digits, dots, dashes and underscores"
        )
    if not _HASH.fullmatch(hashed):
        raise ConfigurationError("a password's hash is its SHA-256: 64 hexadecimal digits, in small letters")
    begin = f"user {user} on" if aclfile else f"ACL SETUSER {user} on clearselectors"
    selectors = " ".join(f"({rule})" for rule in rules)
    return f"{begin} #{hashed} resetkeys resetchannels -@all {AccessRule(_CONNECTION)} {selectors}"
