"""Permissions of each role on a shared Redis, as rules of its access control lists (ACL).

A rule is a *selector*: some commands, on some keys and channels. A command is allowed when one rule allows all of it,
so that, say, a worker may listen on the channel of Celery's remote control and not speak on it. Selectors, and patterns
for reading and writing, need Redis 7.0 or Valkey. A server refuses a rule that names a command unknown to it, so rules
name only what Redis 7.0 has. What a script does is held to the same rules as its caller.
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

#: What every client does, whatever it is for.
_CONNECTION: Final = (
    "auth hello ping echo quit select client|setname info time multi exec discard unwatch unsubscribe punsubscribe role"
)
_USER: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")

#: Celery's keys and channels, as kombu names them on Redis: who listens to an exchange; the lists into which answers to
#: remote commands go.
_BINDINGS: Final = ("_kombu.binding.", "_kombu.binding_permanent.")
_DEADLINES: Final = "_kombu.binding_deadlines"
_REMOTE: Final = f"{CONTROL_EXCHANGE}.pidbox"
_REPLIES: Final = f"*.reply.{_REMOTE}*"


@dataclass(frozen=True, slots=True)
class Rule:
    """Commands that are allowed on keys (prefixed by ``%R~`` or ``%W~`` if only read or written) and channels."""

    commands: str
    keys: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()

    def __str__(self) -> str:
        keys = [key if key.startswith("%") else f"~{key}" for key in self.keys]
        return " ".join(
            [*(f"+{name}" for name in self.commands.split()), *keys, *(f"&{name}" for name in self.channels)]
        )


#: Who listens to what, as everybody who listens keeps it, and clears away what nobody has kept.
_BOOKKEEPING: Final = Rule(
    "sadd srem smembers exists del zadd zrem zrangebyscore evalsha eval script|load script|exists",
    (*(f"{table}*" for table in _BINDINGS), _DEADLINES),
)
#: Messages that were handed out and not acknowledged, which whoever takes messages looks through; mqtune's never are
#: there.
_HANDED_OUT: Final = Rule("hset hget hdel zadd zrem zrange watch set get del evalsha", (*UNACKED.values(),))

#: Quotas, and the lists of what runs under each: everybody may count these, and may not read whose they are.
_READS_QUOTAS: Final = (f"%R~{QUOTAS}", f"%R~{quota_key('*')}")


#: By this alone an operator's account is told from any other.
_OPERATOR: Final = Rule("hexists", (f"%R~{QUOTAS}",))


#: Everybody who can end or change the work of others notes it.
_AUDITED: Final = Rule("xadd", (f"%W~{AUDIT}",))


def _drains(db: int) -> list[Rule]:
    """Return the rules for draining a worker, or disabling a device of one."""
    return [Rule("get set", (drain_key("*"),)), Rule("publish", channels=(control_channel("*", db),))]


def rules_of(
    role: Role, *, experiments: str = EVERY, db: int = 0, remote_control: bool = False, all_keys: bool = False
) -> list[Rule]:
    """Return the rules of an account of this role, which beyond them may only connect.

    Args:
        role: the account's role.
        experiments: the names of the experiments that it is for, ``*`` standing for any letters.
        db: the number of the database, which is part of the names of Celery's channels.
        remote_control: whether a monitor may send Celery's remote commands, as Flower does; they can end trials and
            workers.
        all_keys: whether a driver may see the names of all keys, also of other programs', as ``mqtune delete --unused``
            does.

    Raises:
        ConfigurationError: *experiments* is not a pattern of names, or the role sends no remote commands, or sees no
            names of keys.
    """
    check_experiments(experiments)
    if remote_control and role != "monitor":
        raise ConfigurationError(
            f"a {role} sends no remote commands, so there is nothing to allow: give --remote-control to a monitor"
        )
    if all_keys and (role, experiments) != ("driver", EVERY):
        raise ConfigurationError(
            "--all-keys is for a driver of all experiments: mqtune acl driver --all-keys, without --experiments"
        )
    kept = ExperimentKeys(experiments, db)
    match role:
        case "driver":
            looks = [Rule("scan"), Rule("memory|usage", (f"%R~{ALL_EXPERIMENTS}",))] if all_keys else []
            # With another server's id a team could have that one's checkpoints taken for this one's.
            names = [Rule("set", (IDENTITY,))] if experiments == EVERY else []
            audits = [_AUDITED, *_audits(experiments)]
            return [*_driver(kept, _queues(experiments), db), *names, *looks, *audits]
        case "worker":
            return _worker(kept, _queues(experiments), _quotas(experiments), db)
        case "operator":
            # A team's own operator sets no quotas, drains no worker, which may be others' too, and wakes none to send
            # output.
            sets = [Rule("hset hdel", (QUOTAS,)), *_drains(db), *_output(kept)] if experiments == EVERY else []
            looks = _monitor(kept, _queues(experiments), db, remote_control=False)
            return [*_requests(kept), *_halts(kept), *looks, _OPERATOR, _AUDITED, *sets, *_audits(experiments)]
        case "monitor":
            return [
                *_monitor(kept, _queues(experiments), db, remote_control=remote_control),
                *_audits(experiments),
            ]


def _audits(experiments: str) -> list[Rule]:
    """Return the rules for reading the audit stream, which has the names of all teams' experiments."""
    return [Rule("xrevrange", (f"%R~{AUDIT}",))] if experiments == EVERY else []


def _driver(kept: ExperimentKeys, queues: tuple[str, ...], db: int) -> list[Rule]:
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
        Rule("evalsha eval", (*everything, EXPERIMENTS, SUBMISSIONS)),
        Rule(
            "hget hmget hset hsetnx hdel hexists hkeys hstrlen zadd zrem zscore zrange zrangebyscore xadd xrange "
            "xrevrange xtrim exists del rename expire pexpire persist",
            everything,
        ),
        # One blocking read hears of both.
        Rule("xread", (f"%R~{kept.journal}", f"%R~{FLEET}")),
        Rule("zadd zrem", (EXPERIMENTS,)),
        # Scripts that are submitted, and run for those who did.
        Rule("zadd zrem zscore zrangebyscore", (SUBMISSIONS,)),
        Rule("publish", channels=(kept.metrics, control_channel("*", db))),
        *_output(kept),
        # The fleet, and who of it is to be emptied.
        Rule(
            "zrange zrangebyscore mget get xrevrange", tuple(f"%R~{key}" for key in (FLEET, WORKERS, worker_key("*")))
        ),
        Rule("get mget set del", (drain_key("*"),)),
        Rule("get", (f"%R~{IDENTITY}",)),
        # What each experiment wants of the fleet, and may have, under a token in place of its name.
        Rule("evalsha eval", (DEMANDS, QUOTAS, SHARES)),
        Rule("hset hdel hgetall", (DEMANDS,)),
        Rule("hget hmget hset hdel del pexpire", (SHARES,)),
        Rule("hgetall zcount", _READS_QUOTAS),
        # Celery's messages, on their way out; and whether they still wait.
        Rule("lpush lrange llen lrem", queues),
        Rule("sadd smembers", tuple(f"{table}{queue}" for table in _BINDINGS for queue in queues)),
        # What a worker that fell silent can't say itself.
        Rule("publish", channels=(f"/{db}.{EVENT_EXCHANGE}/task.{AttemptEnd.LOST.value}",)),
        *_looks(kept),
    ]


def _worker(kept: ExperimentKeys, queues: tuple[str, ...], quotas: tuple[str, ...], db: int) -> list[Rule]:
    trials = kept.trial("*")
    return [
        *_requests(kept),
        Rule(
            "evalsha eval",
            (kept.meta, kept.journal, kept.leases, kept.staged, kept.checkpoints, kept.requests, trials, QUOTAS),
        ),
        # How many attempts may run, and which do.
        Rule("hgetall zcount", _READS_QUOTAS),
        Rule("zadd zrem zcount zremrangebyscore expire", quotas),
        Rule("hget hmget hset", (kept.meta,)),
        Rule("hget hmget hset expire", (trials,)),
        Rule("hget hsetnx", (kept.checkpoints,)),
        Rule("hget hstrlen", (f"%R~{kept.code}",)),
        # Whether it was here that a submitted script has run, whose output somebody asks for.
        Rule("hmget", (f"%R~{kept.submission}",)),
        Rule("zadd zrem zcard", (kept.leases, kept.staged)),
        # Which gang was staged first.
        Rule("zrange", (f"%R~{kept.staged}",)),
        # Questions for output of trials, and the answers.
        Rule("lpop", (kept.asked("*"),)),
        Rule("rpush pexpire", (kept.log("*"),)),
        # What its attempts use of its machine.
        Rule("set", (f"%W~{kept.usage('*')}",)),
        # Its own place in the fleet. It only listens to what drivers say.
        Rule("zadd zrem zrange zrangebyscore zremrangebyscore", (WORKERS,)),
        Rule("get mget set del", (worker_key("*"),)),
        Rule("get set del pttl", (name_key("*"),)),
        Rule("evalsha eval", (WORKERS, worker_key("*"), name_key("*"), drain_key("*"))),
        Rule("xadd", (FLEET,)),
        Rule("get del", (drain_key("*"),)),
        Rule("subscribe", channels=(control_channel("*", db),)),
        # Celery's messages, taken, and put back by a worker that ends in this moment; its events; remote commands,
        # heard and answered.
        Rule("brpop llen lpush rpush", queues),
        _BOOKKEEPING,
        _HANDED_OUT,
        Rule("publish", channels=(f"/{db}.{EVENT_EXCHANGE}/*",)),
        Rule("psubscribe", channels=(f"/{db}.{_REMOTE}",)),
        Rule("llen exists del", (f"*.{_REMOTE}*",)),
        Rule("lpush", (_REPLIES,)),
    ]


def _monitor(kept: ExperimentKeys, queues: tuple[str, ...], db: int, *, remote_control: bool) -> list[Rule]:
    fleet = tuple(f"%R~{key}" for key in (FLEET, WORKERS, worker_key("*")))
    rules = [
        *_looks(kept),
        Rule("zrange zrangebyscore mget get xrange xrevrange", fleet),
        # What experiments want of the fleet, under tokens in place of their names.
        Rule("hgetall zcount", (f"%R~{DEMANDS}", *_READS_QUOTAS)),
        # How many attempts run, and how many wait and for how long; how many messages wait in queues, without reading
        # one.
        Rule("zcard zrange", (f"%R~{kept.leases}", f"%R~{kept.staged}")),
        Rule("llen", tuple(f"%R~{queue}" for queue in queues)),
    ]
    if remote_control:
        # Flower listens to events, and asks for them by a remote command.
        rules += [
            _BOOKKEEPING,
            _HANDED_OUT,
            Rule("llen", (f"%R~{QUEUES}",)),
            Rule("llen exists del", (f"{EVENT_EXCHANGE}.*",)),
            Rule("psubscribe", channels=(f"/{db}.{EVENT_EXCHANGE}/*",)),
            Rule("publish", channels=(f"/{db}.{_REMOTE}",)),
            Rule("brpop llen exists del pexpire", (_REPLIES,)),
        ]
    return rules


def _queues(experiments: str) -> tuple[str, ...]:
    """Return the queues of workers for these experiments; workers for some experiments alone have queues of their own.

    What waits in a queue can be read by who may publish there, with its config.
    """
    if experiments == EVERY:
        return (QUEUES,)
    # A list for each of kombu's priorities, whose number follows two bytes.
    name = f"{QUEUES}@{experiments}"
    return name, f"{name}??[369]"


def _quotas(experiments: str) -> tuple[str, ...]:
    """Return the keys of the quotas under which attempts of these experiments count.

    These are the pattern's own quota and those of some of its experiments, and, of those that hold for others too, each
    that is a beginning of the pattern and a star.
    """
    beginning = experiments.partition("*")[0]
    wider = [beginning[:length] for length in range(len(beginning) + 1)]
    return (quota_key(experiments), *(quota_key(rf"{each}\*") for each in wider))


def _requests(kept: ExperimentKeys) -> list[Rule]:
    """Return the rules for requests to the driver; a worker requests that the trial of a revoked task is stopped."""
    return [
        Rule("evalsha eval", (kept.meta, kept.journal, kept.requests)),
        Rule("hget hset hdel hexists", (kept.meta, kept.requests)),
        Rule("xadd", (kept.journal,)),
        Rule("publish", channels=(kept.metrics,)),
    ]


def _output(kept: ExperimentKeys) -> list[Rule]:
    """Return the rules for asking workers for the output of trials, and for taking the answers."""
    return [
        Rule("rpush pexpire", (kept.asked("*"),)),
        Rule("lpop", (kept.log("*"),)),
        Rule("hmget", (f"%R~{kept.trial('*')}",)),
    ]


def _halts(kept: ExperimentKeys) -> list[Rule]:
    """Return the rules for having a submission end."""
    return [
        Rule("evalsha eval", (kept.submission, SUBMISSIONS)),
        Rule("hget hset", (kept.submission,)),
        Rule("zrem zscore", (SUBMISSIONS,)),
    ]


def _looks(kept: ExperimentKeys) -> list[Rule]:
    """Return the rules for following an experiment."""
    return [
        Rule("xrange xrevrange xlen", (f"%R~{kept.journal}",)),
        Rule("memory|usage", (f"%R~{kept.journal}", f"%R~{kept.checkpoints}")),
        Rule("hget hmget", (f"%R~{kept.meta}", f"%R~{kept.chapters}", f"%R~{kept.submission}")),
        Rule("zrange zrevrange zscore", (f"%R~{EXPERIMENTS}", f"%R~{SUBMISSIONS}")),
        Rule("mget", (f"%R~{kept.usage('*')}",)),
        Rule("subscribe", channels=(kept.metrics,)),
    ]


def password_hash(password: str) -> str:
    """Return a password's hash as ACL rules have it."""
    return hashlib.sha256(password.encode()).hexdigest()


def account(user: str, hashed: str, rules: list[Rule], *, aclfile: bool = False) -> str:
    """Return the line that creates an account, or gives one these rules.

    A command for redis-cli, or a line of an ACL file. By the command an account keeps the passwords that it has, and
    gets this one besides, so that programs can change from one to the next.

    Args:
        user: its name.
        hashed: its password's SHA-256 in hex.
        rules: what it may do.
        aclfile: whether the line is for an ACL file.

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
    return f"{begin} #{hashed} resetkeys resetchannels -@all {Rule(_CONNECTION)} {selectors}"
