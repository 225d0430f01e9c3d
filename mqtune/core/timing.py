"""The times by which drivers, workers, servers and screens go, as one value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Leases, polls, graces and timeouts, in seconds. Objects get it when they are made, and hand it on.

    The defaults are the product's own. All processes of an experiment need the same leases and locks.
    """

    # Connections to Redis.

    #: How long one command may take before the connection counts as dead: a longest blocking read and a busy server.
    command_timeout_s: float = 10.0
    #: The longest blocking read. It stays well below ``command_timeout_s``, which would end the connection.
    blocking_read_s: float = 4.0
    #: How long a person waits before the answer is that nothing answers.
    connect_timeout_s: float = 5.0
    #: A connection that was used this recently is not checked; the pool checks older ones.
    fresh_s: float = 1.0
    #: The first pause before a call to a missing server is repeated; each further pause is twice as long.
    first_retry_s: float = 0.05

    # The journal, and the records beside it.

    #: A driver that is silent for this long may be replaced; it renews its lock four times within that. Demands of
    #: drivers and submissions of workers hold for as long.
    lock_s: float = 20.0
    #: How often a driver renews its lock, and a worker its submissions.
    keep_lock_s: float = 5.0
    #: A script run that is lost this soon was short: one that takes its machine's memory does that within minutes.
    short_run_s: float = 600.0
    #: After this silence of a driver the unused slots of its share are lent: it states its demand each second.
    lend_after_s: float = 3.0
    #: How long the table of shares holds unless it is published again, as it is each second: with the second until the
    #: next driver asks, another one divides 5 s after the dividing driver was killed, frozen or cut off.
    share_table_s: float = 4.0
    #: A new dividing driver reads the register if the published one is older. Drivers refresh it this often.
    register_s: float = 5.0
    #: How long a store may take to answer with a chapter: some megabytes from another continent take less.
    chapter_answer_s: float = 20.0
    #: How long a worker may take to answer with a trial's output: its disk may be a slow network's.
    log_answer_s: float = 10.0
    #: How often the worker is woken again: the first time may have been lost in a reconnect.
    wake_again_s: float = 1.0
    #: After this long without a message the journal is asked whether one was lost: a message names the one before it,
    #: but the last one has nothing after it that would tell.
    follow_silence_s: float = 5.0
    #: A control channel without any message for this long is broken: time for two health checks and a frozen server.
    channel_silence_s: float = 75.0

    # The driver.

    #: How long the driver waits for a Redis that is away; its trials run on meanwhile, and after.
    patience_s: float = 300.0
    #: How often attempts are checked; a lost trial waits at most this long on top of its lease.
    look_at_leases_s: float = 0.5
    #: For how long no attempt is lost after the driver begins, or after Redis was away, frozen, or its clock was set
    #: forward: leases expired meanwhile, and workers must have a chance to renew them.
    lease_grace_s: float = 8.0
    #: After this long without a check, the server may have been frozen unnoticed. A healthy lease has 12 s left, so
    #: that no shorter stall makes it expire.
    stall_s: float = 8.0
    #: An attempt that no queue holds and nobody claimed for this long was lost on the way, and is published again.
    unclaimed_s: float = 10.0
    #: How often it is checked whether Redis still has each attempt that is under way, and somebody each that is staged.
    look_at_attempts_s: float = 10.0
    #: How long to wait before a store that could not be written is tried again.
    trim_retry_s: float = 30.0
    #: How often a driver states what it wants and learns its share: others learn of a new experiment that much later.
    look_at_shares_s: float = 1.0
    #: For how long the past use of an experiment counts: an hour has space for a dozen turns. With a much shorter time
    #: an experiment that has had two turns is forgiven before others have had their first.
    share_memory_s: float = 3_600.0
    #: For how long an experiment may exceed its share, rounded up, before trials of it are paused: most end before.
    share_grace_s: float = 60.0
    #: The same for a slot that it has in turn with others: a turn must be worth a trial's stop and start, and an hour
    #: must have space for turns enough.
    share_turn_s: float = 300.0
    #: After a suggestion that took longer, the next is worked out before a slot is free, although it then knows less.
    prefetch_s: float = 0.1

    # The worker.

    #: A worker that is silent this long loses its attempts: longer than a restart of Redis or a pause of the machine.
    lease_s: float = 15.0
    #: Five renewals fit into a lease.
    heartbeat_s: float = 3.0
    #: How often a worker checks slow things that change in minutes: the use of devices and machine, devices in
    #: quarantine, unneeded processes, and whether it takes waiting trials. nvidia-smi takes up to a second.
    round_s: float = 10.0
    #: A worker reconnects after this time, counted in rounds, in which trials waited and it took none. A healthy one
    #: takes them within milliseconds, and after an outage of Redis within half a minute.
    stuck_s: float = 60.0
    #: A connection that no command has used for so long is closed: longer than the pauses between heartbeats.
    unused_s: float = 10.0
    #: How long a device may stand idle before its worker warns: an evaluation or a data set takes minutes.
    idle_s: float = 600.0
    #: How long a trial that was told to stop has to finish its ``finally`` blocks, before its group gets SIGTERM.
    stop_grace_s: float = 10.0
    #: The same for a pause, for which a class finishes its step and saves: an epoch, and gigabytes of state.
    pause_grace_s: float = 600.0
    #: How long its group has after SIGTERM before it gets SIGKILL.
    terminate_grace_s: float = 5.0
    #: How long a zygote may be silent after its trial's process has ended. While it cleans up it tells each second.
    zygote_silence_s: float = 10.0
    #: How long a zygote may take to start a trial: a fork of a process with much memory, on a machine that swaps.
    zygote_start_s: float = 30.0
    #: How long a zygote may take to accept a message, or to send the rest of one: milliseconds, unless it is frozen.
    zygote_exchange_s: float = 10.0
    #: A zygote that is asked to end kills its trial and ends within milliseconds; after this time it is killed.
    zygote_close_s: float = 5.0
    #: How often a process that imports is checked. One that is stopped at two checks in a row is killed.
    import_look_s: float = 5.0
    #: How long a device waits for its first probe: by then attempts elsewhere have shown how they do.
    first_probe_s: float = 15.0
    #: How long the list of GPUs may take: a second as a rule, and many where their driver has to be loaded first.
    gpu_list_s: float = 30.0
    #: The driver of a GPU answers within milliseconds, or within seconds if it has to be loaded first, or never.
    gpu_answer_s: float = 10.0
    #: How long a driver that did not answer is not asked again, so that a broken one does not delay every trial.
    gpu_pause_s: float = 60.0
    #: How long the driver may take to free a dead process's memory: milliseconds, or many seconds on a large GPU.
    gpu_return_s: float = 30.0
    #: How often the driver is asked meanwhile: a question costs a millisecond, and GPU trials don't start every second.
    gpu_poll_s: float = 0.1
    #: How long a health check may take: it delays a trial, and a driver that hangs never answers.
    health_check_s: float = 30.0
    #: How long a slot counts as sound after a check, unless an attempt fails there.
    sound_s: float = 300.0
    #: How often all files of output are checked. In between a trial may write what the disk takes, about a gigabyte.
    look_at_logs_s: float = 0.5
    #: How often it is tried whether the log folder can be written.
    try_logs_s: float = 10.0
    #: How often a part that a full server has refused is written again, so that trials continue soon after it is not.
    full_retry_s: float = 1.0
    #: A shorter time for which an attempt's data waited for Redis is no figure: a new connection takes milliseconds.
    least_wait_s: float = 1.0
    #: How often it is checked whether a script has ended, or one waits for a free slot: a short command each time.
    look_at_scripts_s: float = 0.5
    #: For how long a worker whose slots are all busy would leave a submission to others, and one of which a part is
    #: busy for that part of it: so scripts go to the least busy worker, and the death of one ends few of them.
    spread_s: float = 4.0

    # The server of a run on one machine.

    #: The time in which a server without data must answer: a thousand times what it takes on an idle machine.
    server_start_s: float = 10.0
    #: The time that a server has to flush its append-only file before it is killed.
    server_stop_s: float = 5.0
    #: A server that still answers after this time is not being stopped: a stopping one no longer answers within 0.1 s.
    handover_answering_s: float = 1.0

    # Screens and tools.

    #: The pause between two checks of the fleet while workers drain.
    drain_look_s: float = 0.2
    #: The time on top of a worker's own: the fleet lists a dead worker until its heartbeat expires.
    drain_register_s: float = 20.0
    #: How long an answer for Prometheus may take: it waits for 10 s, and is to hear that Redis is away.
    figures_answer_s: float = 3.0
    #: How long the page follows an experiment that nobody looks at: a page that is loaded again finds it there.
    linger_s: float = 30.0
    #: How long a read of the page waits for news; a feed that is closed ends within that.
    feed_wait_s: float = 0.5
    #: How often the page asks whether there is a driver, and tries again after an error.
    feed_state_s: float = 2.0
