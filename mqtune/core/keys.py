"""All Redis keys and channels of mqtune. No other module spells one out.

The fleet, shared by all experiments::

    mqtune:fleet                    stream  joining and leaving workers, about the newest 1,000
    mqtune:workers                  zset    worker -> server time (ms) at which its heartbeat expires
    mqtune:worker:<worker>          string  msgpack description of the worker; expires soon after the heartbeat
    mqtune:name:<worker>            string  token of the process with this worker name; expires with the heartbeat
    mqtune:drain:<worker>           string  msgpack of an operator's orders to the worker: the process that has to
                                            drain, and the disabled devices; expires if there are no devices
    mqtune:control[/<db>]:<worker>  channel msgpack list of [experiment, trial, attempt, orders]; hints; the trial's
                                            hash is authoritative; <db> is the database number, left out for 0
    mqtune:experiments              zset    experiment -> server time (ms) of its creation
    mqtune:identity                 string  id of this server's data, for checkpoint stores
    mqtune:last_numbers             hash    stem of default names -> number of the newest one: digits -> 3 for digits-3
    mqtune:demands                  hash    token of an experiment -> server time (ms) until which the demand is valid,
                                            a space, its matching quota and cap patterns with commas between, a space,
                                            and the demand as JSON (see mqtune.services.shares)
    mqtune:shares                   hash    share of each experiment; expires seconds after the dividing driver is gone
                                            number      fencing number of the dividing driver
                                            of:<token>  msgpack of an experiment's share
                                            crews       msgpack of the register's summary: counts of equal workers
                                            version     of the crews
                                            busy        msgpack of the slots that each experiment uses in each queue,
                                                        by token
                                            read_at     server time (ms) of the last register read
    mqtune:quotas                   hash    pattern of experiment names -> limit of their running attempts
    mqtune:audit                    stream  by, action, target and detail, as text: changes of the fleet and its
                                            accounts, and uses of --force; the newest 20,000 (see
                                            mqtune.services.ownership.audit)
    mqtune:submissions              zset    submission that has not ended -> server time (ms) at which its worker's
                                            claim expires; without a worker, when it was submitted or returned
    mqtune:unacked                  hash    messages that Celery's workers have received and not acknowledged. With
                                            kombu's own key, all Celery applications on the server would share them
    mqtune:unacked:index            zset    the ids of these messages -> time of receipt
    mqtune:unacked:mutex            string  lock of the process that checks them; expires
    mqtune:quota:<pattern>          zset    running "<experiment>/<trial>" under that quota -> server time (ms) at
                                            which its lease expires; expires

One experiment ``E``::

    mqtune:x:{E}:meta               hash    definition  msgpack, from the newest driver
                                            last        id of the newest journal entry
                                            bytes       of the journal's entries in Redis
                                            most_bytes  limit of bytes, at which reports have to wait; 0 for no limit
                                            driver_until  server time (ms) at which the driver's lock expires or expired
                                            on_loss     continue | finish | stop: the workers' action without a driver
                                            loss_ms     delay after driver_until, in ms
                                            waits       why the driver starts nothing now, for users
                                            read        id of the newest entry that the driver had read at its last
                                                        lock renewal, or ""
                                            fared:<how> server time (ms) at which an attempt last did well, or
                                                        failed immediately, and its worker; or of an error about a
                                                        broken device, and the device (see compare)
    mqtune:x:{E}:driver             hash    epoch       fencing number of the newest driver
                                            holder      token of that driver
                                            driver      description of that driver, for users
                                            since       server time (ms) at which it took the lock
                                            recorded    mark of the newest event that the record script wrote
                                            dropped     mark of the last dropped checkpoints
                                            restored    mark of the last restore of lost entries
    mqtune:x:{E}:journal            stream  one field, e: an encoded event (see mqtune.core.events)
    mqtune:x:{E}:chapters           hash    lines       one for each chapter: its id in the store, its first and last
                                                        entry, the number of entries, and their bytes
                                            trimmed     id of the last entry in a chapter
                                            first       the first entry of all: its id, a space, the event
    mqtune:x:{E}:restored:<mark>    stream  entries to restore into the journal; expires
    mqtune:x:{E}:metrics[/<db>]     channel "<id> <id before> <encoded event>", sent by the script that appends the
                                            entry
    mqtune:x:{E}:leases             zset    task -> server time (ms) at which its lease expires; task 0 has the name of
                                            its trial
    mqtune:x:{E}:staged             zset    task -> server time (ms) at which its attempt was staged; unclaimed ones
                                            only
    mqtune:x:{E}:asked:<worker>     list    msgpack requests for output of trials that ran on the worker; expires
    mqtune:x:{E}:log:<token>        list    msgpack answer to one of these requests; expires
    mqtune:x:{E}:usage:<worker>     string  msgpack of the resource use of the worker's attempts (see
                                            mqtune.core.usage); expires
    mqtune:x:{E}:requests           hash    id of a request -> id of the journal entry that holds it
    mqtune:x:{E}:code               hash    <digest>    the bundle of the experiment's code
                                            <digest>:signature  proof that the sender has the workers' key
    mqtune:x:{E}:submission         hash    mark        of the call that submitted the script (see
                                                        mqtune.core.submission)
                                            description  of it, msgpack
                                            signature   proof that the sender has the workers' key
                                            state       waiting | running | ended
                                            run         number of its newest run
                                            before      number of the last run of an earlier submission of this name
                                            worker      newest worker that claimed it
                                            token       of that claim; later calls must carry it
                                            began       server time (ms) of that claim
                                            short       number of runs in a row that were lost soon after their start
                                            stop        why a user stopped it, once requested
                                            how         done | failed | stopped, once it has ended
                                            ended_at    server time (ms) of its end
                                            code        exit code of the last ended run
                                            reason      why that run ended
                                            output      the end of its output
                                            refused     workers that may not run it, one on each line
                                            refusal     reason of the last of them
    mqtune:x:{E}:submission:code    hash    digest -> the bundle of its code
    mqtune:x:{E}:checkpoints        hash    checkpoint -> its data; checkpoints in memory only
    mqtune:x:{E}:trial:<task>       hash    of a trial or further task <trial>~<number>; expires days after its attempt
                                            attempt     number of the current attempt, the fencing token
                                            state       staged | running | ended
                                            assignment  msgpack (see mqtune.journal.base)
                                            worker      that claimed it
                                            token       of that claim; later writes must carry it
                                            ended_by    token of the claim, or epoch of the driver, that ended it;
                                                        followed by ":<intent>" if it was unclaimed; or "restored"
                                            sequence    of the last accepted report of this attempt
                                            timestamp   of the last accepted report of the trial
                                            orders      pending order (see the order script): an intent, or words, or ""
                                            decided     "<attempt>:<intent>" of the last journaled decision
                                            closed      mark of the last event that ended, or paused, the trial without
                                                        an attempt
                                            saved       id of the last checkpoint without a report
                                            held_until  server time (ms) until which it is reserved for a worker before
                                                        the claim
                                            held_by     that worker
                                            gang        number of tasks, whether each needs its own worker, and the
                                                        requested resources: "2:apart:8 GPUs, 4 CPUs"; or ""
                                            seated_until  server time (ms) until which a claim reserves a task while
                                                          others are free
                                            start       of one of several tasks: the event of its start, until
                                                        all are claimed
                                            address     of a task, for the other tasks
                                            ended_as    of task 0: how the task that ended the attempt ended:
                                                        itself | failure | worker; or ""
                                            end         of task 0: the event of that end; the last task
                                                        appends it
                                            importing_since  server time (ms) at which the trainable's import began, or
                                                             ""

The braces put one experiment into one slot of a Redis Cluster, as scripts need.
"""

from __future__ import annotations

import re
from typing import Final

FLEET: Final = "mqtune:fleet"
WORKERS: Final = "mqtune:workers"
EXPERIMENTS: Final = "mqtune:experiments"
IDENTITY: Final = "mqtune:identity"
LAST_NUMBERS: Final = "mqtune:last_numbers"
DEMANDS: Final = "mqtune:demands"
QUOTAS: Final = "mqtune:quotas"
SUBMISSIONS: Final = "mqtune:submissions"
SHARES: Final = "mqtune:shares"
AUDIT: Final = "mqtune:audit"
#: Exchanges of Celery's remote commands and events. With Celery's names, another team's ``control shutdown`` on the
#: same Redis would end mqtune's workers.
CONTROL_EXCHANGE: Final = "mqtune"
EVENT_EXCHANGE: Final = "mqtune-events"
#: Celery's tables of unacknowledged messages, by kombu's names for these settings.
UNACKED: Final = {
    "unacked_key": "mqtune:unacked",
    "unacked_index_key": "mqtune:unacked:index",
    "unacked_mutex_key": "mqtune:unacked:mutex",
}
#: The Celery task that carries an attempt from the driver to a worker.
TASK_NAME: Final = "mqtune.run_trial"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_name(name: object) -> bool:
    """Whether *name* is a valid name of an experiment or trial.

    Valid names are safe in keys, file names and task ids.
    """
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def worker_key(worker: str) -> str:
    """Return the key of a worker's description."""
    return f"mqtune:worker:{worker}"


def name_key(worker: str) -> str:
    """Return the key with the token of the process that has a worker's name."""
    return f"mqtune:name:{worker}"


def quota_key(pattern: str) -> str:
    """Return the key of the attempts that run under a quota."""
    return f"mqtune:quota:{pattern}"


def drain_key(worker: str) -> str:
    """Return the key of an operator's orders to a worker: to drain, and to disable devices."""
    return f"mqtune:drain:{worker}"


def _of_database(db: int) -> str:
    """Return the database's part of a channel name. Databases share all channels."""
    return f"/{db}" if db else ""


def control_channel(worker: str, db: int = 0) -> str:
    """Return the channel for hints to a worker of a database."""
    return f"mqtune:control{_of_database(db)}:{worker}"


#: Redis pattern that matches the keys of all experiments.
ALL_EXPERIMENTS: Final = "mqtune:x:{*"
_OF_EXPERIMENT: Final = re.compile(r"mqtune:x:\{([^{}]*)\}:.*")


def experiment_of(key: str) -> str:
    """Return the name of the experiment that owns a key, or an empty text."""
    matched = _OF_EXPERIMENT.fullmatch(key)
    return matched[1] if matched and is_name(matched[1]) else ""


class ExperimentKeys:
    """The keys and the channel of one experiment.

    Args:
        db: database number. Only the channel's name depends on it, because databases share channels.
    """

    def __init__(self, experiment: str, db: int = 0) -> None:
        prefix = f"mqtune:x:{{{experiment}}}"
        self.meta = f"{prefix}:meta"
        #: The driver's identity and epoch. Workers need not read it.
        self.driver = f"{prefix}:driver"
        self.journal = f"{prefix}:journal"
        #: Index of the chapters. Workers must not write it: a false entry would end drivers.
        self.chapters = f"{prefix}:chapters"
        #: Channel for entries that are appended to the journal.
        self.metrics = f"{prefix}:metrics{_of_database(db)}"
        self.leases = f"{prefix}:leases"
        self.staged = f"{prefix}:staged"
        self.checkpoints = f"{prefix}:checkpoints"
        self.requests = f"{prefix}:requests"
        #: The driver's code. Workers may not write it.
        self.code = f"{prefix}:code"
        #: The submission under this name, and its code.
        self.submission = f"{prefix}:submission"
        self.submitted_code = f"{prefix}:submission:code"
        self._restored = f"{prefix}:restored:"
        self._trial = f"{prefix}:trial:"
        self._asked = f"{prefix}:asked:"
        self._log = f"{prefix}:log:"
        self._usage = f"{prefix}:usage:"

    def restored(self, mark: str) -> str:
        """Return the key of entries that are being restored into the journal."""
        return f"{self._restored}{mark}"

    def trial(self, trial: str) -> str:
        """Return the key of a trial's hash."""
        return self._trial + trial

    def asked(self, worker: str) -> str:
        """Return the key of the requests for output that a worker has to answer."""
        return self._asked + worker

    def log(self, token: str) -> str:
        """Return the key of the answer to a request for output. *token* identifies the request."""
        return self._log + token

    def usage(self, worker: str) -> str:
        """Return the key of the resource use of a worker's attempts."""
        return self._usage + worker
