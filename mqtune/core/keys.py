"""Every Redis key and channel of mqtune; nothing else in the project spells one out.

The fleet, shared by all experiments::

    mqtune:fleet                    stream  workers that joined or left, newest some 1,000
    mqtune:workers                  zset    worker -> server time (ms) at which its heartbeat runs out
    mqtune:worker:<worker>          string  msgpack description of the worker; expires soon after the heartbeat
    mqtune:name:<worker>            string  token of the process that has this worker's name; expires with the heartbeat
    mqtune:drain:<worker>           string  for which start of the worker it is to drain, and the devices that are disabled; expires without these
    mqtune:control[/<db>]:<worker>  channel msgpack list of [experiment, trial, attempt, orders]; hints, the trial's
                                            hash is the truth; <db> is the number of the database, and left out for 0
    mqtune:experiments              zset    experiment -> server time (ms) of its creation
    mqtune:identity                 string  id of what this server holds, by which stores of checkpoints know it
    mqtune:demands                  hash    token of an experiment -> server time (ms) up to which it holds, a space, the patterns of quotas and
                                            caps that its name fits, with commas between, a space, and JSON of what its driver wants of the
                                            fleet (see mqtune.services.shares)
    mqtune:shares                   hash    what each experiment may have; expires some seconds after nobody divides the fleet any more
                                            number      under which one driver divides, which fences off whoever did before
                                            of:<token>  msgpack of an experiment's share
                                            crews       msgpack of the register in short: workers that are alike, counted
                                            version     of the crews
                                            busy        msgpack of the slots of each queue in which each experiment runs, by its token
                                            read_at     server time (ms) at which the register was read
    mqtune:quotas                   hash    pattern of names of experiments -> how many attempts of theirs may run at once
    mqtune:audit                    stream  by, action, target and detail, as text: changes of the fleet and its accounts, and uses of --force;
                                            the newest 20,000 (see mqtune.services.ownership.audit)
    mqtune:submissions              zset    submission that has not ended -> server time (ms) up to which a worker has it; when it was submitted or
                                            given back where none has
    mqtune:unacked                  hash    Celery's messages that were taken and not acknowledged, which mqtune's never are; under kombu's
                                            own names they would be those of every Celery application on the server
    mqtune:unacked:index            zset    their ids -> when they were taken
    mqtune:unacked:mutex            string  who looks through them; expires
    mqtune:quota:<pattern>          zset    "<experiment>/<trial>" that runs under that quota -> server time (ms) at which its lease runs out; expires

One experiment ``E``::

    mqtune:x:{E}:meta               hash    definition  msgpack, as the newest driver has it
                                            last        id of the newest journal entry
                                            bytes       of the entries of the journal that are here
                                            most_bytes  how many there may be until trials are told to wait; 0 for any number
                                            driver_until  server time (ms) at which the driver's lock runs out, or ran out
                                            on_loss     continue | finish | stop: what workers do when the driver is gone
                                            loss_ms     how long after driver_until they do it
                                            waits       why the driver starts nothing now, for people
                                            read        id of the newest entry that the driver had read when it last kept the lock, or ""
                                            fared:<how> server time (ms) at which an attempt has last done well, or failed at once, and
                                                        its worker; or an error said that a device is broken, and that (see compare)
    mqtune:x:{E}:driver             hash    epoch       fencing number of the newest driver
                                            holder      token of that driver
                                            driver      who that is, for people
                                            since       server time (ms) at which it took the lock
                                            recorded    mark of the newest event that the record script wrote
                                            dropped     mark of the checkpoints that were dropped last
                                            restored    mark of the last time that lost entries were put back
    mqtune:x:{E}:journal            stream  one field, e: an encoded event (see mqtune.core.events)
    mqtune:x:{E}:chapters           hash    lines       one for each chapter: its id in the store, its first and last entry, how many it has,
                                                        and their bytes
                                            trimmed     id of the last entry in a chapter
                                            first       the first entry of all, which is in one: its id, a space, the event
    mqtune:x:{E}:restored:<mark>    stream  entries on their way back into the journal; expires
    mqtune:x:{E}:metrics[/<db>]     channel "<id> <id before> <encoded event>", sent by the script that appends the entry
    mqtune:x:{E}:leases             zset    seat -> server time (ms) at which its lease runs out; seat 0 goes by the name of its trial
    mqtune:x:{E}:staged             zset    seat -> server time (ms) at which its attempt was staged; unclaimed ones only
    mqtune:x:{E}:asked:<worker>     list    msgpack questions for output of trials that ran on the worker; expires
    mqtune:x:{E}:log:<token>        list    msgpack answer to one of them; expires
    mqtune:x:{E}:usage:<worker>     string  msgpack of what the worker's attempts use of its machine (see mqtune.core.usage); expires
    mqtune:x:{E}:requests           hash    id of a request -> id of the journal entry that holds it
    mqtune:x:{E}:code               hash    <digest>    the bundle of the experiment's code
                                            <digest>:signature  who brings it proves that they have the workers' key
    mqtune:x:{E}:submission         hash    mark        of the call that has submitted the script (see mqtune.core.submission)
                                            description  of it, msgpack
                                            signature   proves that who submits it has the workers' key
                                            state       waiting | running | ended
                                            run         number of its newest run
                                            before      that of the last run before it was submitted
                                            worker      that took it last
                                            token       of that; later calls must carry it
                                            began       server time (ms) at which that was
                                            short       how many runs in a row were lost soon after they had begun
                                            stop        why a person has it end, once one has
                                            how         done | failed | stopped, once it has ended
                                            ended_at    server time (ms) at which it has
                                            code        exit code of the run that ended last
                                            reason      why that has ended
                                            output      the end of its output
                                            refused     workers that have found that they may not run it, one on each line
                                            refusal     why the last of them may not
    mqtune:x:{E}:submission:code    hash    digest -> the bundle with its code
    mqtune:x:{E}:checkpoints        hash    checkpoint -> its data; those that are held in memory
    mqtune:x:{E}:trial:<seat>       hash    of a trial, or of a further seat, <trial>~<number>; expires some days after its attempt has ended
                                            attempt     number of the current attempt, the fencing token
                                            state       staged | running | ended
                                            assignment  msgpack (see mqtune.journal.base)
                                            worker      who claimed it
                                            token       of that claim; later writes must carry it
                                            ended_by    token of the claim, or epoch of the driver, that ended it; behind that, if
                                                        nobody had claimed it, ":<intent>"; or "restored"
                                            sequence    of the last accepted report of this attempt
                                            timestamp   of the last accepted report of the trial
                                            orders      what the driver wants (see the order script): an intent, or words, or ""
                                            decided     "<attempt>:<intent>" of the last journaled decision
                                            closed      mark of the last event that ended, or paused, the trial without an attempt
                                            saved       id of the last checkpoint that came without a report
                                            held_until  server time (ms) up to which a worker has it that has not claimed it yet
                                            held_by     that worker
                                            gang        how many seats the attempt has, whether each is on another worker, and what it
                                                        asks for: "2:apart:8 GPUs, 4 CPUs"; or ""
                                            seated_until  server time (ms) up to which a claim holds a seat until the others are taken
                                            start       the event of its start, until then
                                            address     of a seat, for the others
                                            ended_as    by what the seat has ended whose end counts: itself | failure | worker; or ""
                                            end         the event of that end, which the last seat appends
                                            importing_since  server time (ms) since when it imports the trainable, or ""

The braces make one experiment one slot of a Redis Cluster, which scripts need.
"""

from __future__ import annotations

import re
from typing import Final

FLEET: Final = "mqtune:fleet"
WORKERS: Final = "mqtune:workers"
EXPERIMENTS: Final = "mqtune:experiments"
IDENTITY: Final = "mqtune:identity"
DEMANDS: Final = "mqtune:demands"
QUOTAS: Final = "mqtune:quotas"
SUBMISSIONS: Final = "mqtune:submissions"
SHARES: Final = "mqtune:shares"
AUDIT: Final = "mqtune:audit"
#: The exchanges of Celery's remote commands and events for mqtune's workers. Celery's own names would have other teams' commands on
#: the same Redis, such as ``control shutdown``, end them.
CONTROL_EXCHANGE: Final = "mqtune"
EVENT_EXCHANGE: Final = "mqtune-events"
#: Celery's tables of messages that were taken and not acknowledged, by kombu's names for these settings.
UNACKED: Final = {
    "unacked_key": "mqtune:unacked",
    "unacked_index_key": "mqtune:unacked:index",
    "unacked_mutex_key": "mqtune:unacked:mutex",
}
#: The Celery task that carries an attempt from the driver's side to a worker's.
TASK_NAME: Final = "mqtune.run_trial"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def is_name(name: object) -> bool:
    """Whether an experiment, or a trial, may be called so: such names become keys, file names and parts of task ids."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def worker_key(worker: str) -> str:
    """Return the key of a worker's description."""
    return f"mqtune:worker:{worker}"


def name_key(worker: str) -> str:
    """Return the key that says which process has a worker's name."""
    return f"mqtune:name:{worker}"


def quota_key(pattern: str) -> str:
    """Return the key of the attempts that run under a quota."""
    return f"mqtune:quota:{pattern}"


def drain_key(worker: str) -> str:
    """Return the key that says that a worker is to drain."""
    return f"mqtune:drain:{worker}"


def _of_database(db: int) -> str:
    """Return the database's part of a channel's name: databases have keys of their own, and share all channels."""
    return f"/{db}" if db else ""


def control_channel(worker: str, db: int = 0) -> str:
    """Return the channel on which a worker of a database gets hints."""
    return f"mqtune:control{_of_database(db)}:{worker}"


#: A pattern of the server's that the keys of all experiments match.
ALL_EXPERIMENTS: Final = "mqtune:x:{*"
_OF_EXPERIMENT: Final = re.compile(r"mqtune:x:\{([^{}]*)\}:.*")


def experiment_of(key: str) -> str:
    """Return the name of the experiment that a key belongs to; empty if it is none of an experiment."""
    found = _OF_EXPERIMENT.fullmatch(key)
    return found[1] if found and is_name(found[1]) else ""


class ExperimentKeys:
    """The keys of one experiment, and its channel.

    Args:
        experiment: the experiment's name.
        db: the number of its database, on which its keys do not depend.
    """

    def __init__(self, experiment: str, db: int = 0) -> None:
        prefix = f"mqtune:x:{{{experiment}}}"
        self.meta = f"{prefix}:meta"
        #: Who drives the experiment; no worker needs to read it.
        self.driver = f"{prefix}:driver"
        self.journal = f"{prefix}:journal"
        #: Where the entries are that have left the journal; no worker may write it, or it could end drivers.
        self.chapters = f"{prefix}:chapters"
        #: The channel on which it publishes what it appends to its journal.
        self.metrics = f"{prefix}:metrics{_of_database(db)}"
        self.leases = f"{prefix}:leases"
        self.staged = f"{prefix}:staged"
        self.checkpoints = f"{prefix}:checkpoints"
        self.requests = f"{prefix}:requests"
        #: The code that its driver brings; no worker may write it.
        self.code = f"{prefix}:code"
        #: What was submitted under this name, and its code.
        self.submission = f"{prefix}:submission"
        self.submitted_code = f"{prefix}:submission:code"
        self._restored = f"{prefix}:restored:"
        self._trial = f"{prefix}:trial:"
        self._asked = f"{prefix}:asked:"
        self._log = f"{prefix}:log:"
        self._usage = f"{prefix}:usage:"

    def restored(self, mark: str) -> str:
        """Return the key of entries that are on their way back into the journal."""
        return f"{self._restored}{mark}"

    def trial(self, trial: str) -> str:
        """Return the key of a trial's hash."""
        return self._trial + trial

    def asked(self, worker: str) -> str:
        """Return the key of the questions for output that a worker is to answer."""
        return self._asked + worker

    def log(self, token: str) -> str:
        """Return the key of the answer to one of them."""
        return self._log + token

    def usage(self, worker: str) -> str:
        """Return the key of what a worker's attempts use of its machine."""
        return self._usage + worker
