"""All leases, intervals and timeouts of drivers, workers, servers and screens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Leases, polls, graces and timeouts, in seconds, passed to objects when they are made.

    Users get the defaults; tests use others. All processes of an experiment need the same leases and locks.
    """

    # Connections to Redis.

    #: Timeout of one command, which covers the longest blocking read and a busy server.
    command_timeout_s: float = 10.0
    #: Longest blocking read, well below ``command_timeout_s``.
    blocking_read_s: float = 4.0
    #: Timeout of a user's connection attempt.
    connect_timeout_s: float = 5.0
    #: Connections used this recently skip the pool's check.
    fresh_s: float = 1.0
    #: First pause before a call to a missing server is retried. Each further pause is twice as long.
    first_retry_s: float = 0.05

    # The journal and its records.

    #: A driver silent for this long may be replaced. It renews its lock four times within that time. Demands of drivers
    #: and workers' claims of submissions are valid for the same time.
    lock_s: float = 20.0
    #: Interval at which a driver renews its lock, and a worker its submissions.
    keep_lock_s: float = 5.0
    #: A run of a submitted script that is lost within this time counts as short. A script that fills its machine's
    #: memory may need minutes for that.
    short_run_s: float = 600.0
    #: A driver states its demand each second. After this long without one, other experiments get its unused slots.
    lend_after_s: float = 3.0
    #: Lifetime of the share table, which is published each second. If the dividing driver is lost, another one divides
    #: after 5 s.
    share_table_s: float = 4.0
    #: A new dividing driver reads the register if the published one is older. Drivers refresh it at this interval.
    register_s: float = 5.0
    #: Timeout for a store to return a chapter of the journal.
    chapter_answer_s: float = 20.0
    #: Timeout for a worker to answer with a trial's output. Its disk may be on a slow network.
    log_answer_s: float = 10.0
    #: Interval at which a worker is woken again, because a wake-up may be lost in a reconnect.
    wake_again_s: float = 1.0
    #: If a follower gets no message for this long, it reads the journal, because the last message may be lost.
    follow_silence_s: float = 5.0
    #: A control channel silent for this long is broken.
    channel_silence_s: float = 75.0

    # The driver.

    #: How long the driver waits for an unavailable Redis. Its trials keep running, even when it gives up.
    patience_s: float = 300.0
    #: Interval of lease checks. A lost attempt is noticed at most this long after its lease has expired.
    look_at_leases_s: float = 0.5
    #: No attempt is lost this soon after the driver begins, or after an outage or clock jump of Redis. Workers must
    #: first get a chance to renew expired leases.
    lease_grace_s: float = 8.0
    #: If lease checks pause for longer than this, the server may have been frozen, and workers could not renew. A
    #: renewed lease lasts 12 s or more, so a shorter pause makes none expire.
    stall_s: float = 8.0
    #: If an unclaimed attempt is in no queue for this long, its message was lost. It is published again.
    unclaimed_s: float = 10.0
    #: Interval of the check that all running and staged attempts still exist.
    look_at_attempts_s: float = 10.0
    #: Pause before the driver tries again to move old entries into a store that could not be written.
    trim_retry_s: float = 30.0
    #: Interval at which a driver states its demand and reads its share.
    look_at_shares_s: float = 1.0
    #: How long the past use of an experiment counts for its share. An hour has a dozen turns.
    share_memory_s: float = 3_600.0
    #: How long an experiment may exceed its rounded-up share before its trials are paused.
    share_grace_s: float = 60.0
    #: The same for a slot that experiments use in turns. A turn must be much longer than a trial's stop and start.
    share_turn_s: float = 300.0
    #: If a suggestion takes longer than this, the next one is computed before a slot is free, from fewer results.
    prefetch_s: float = 0.1

    # The worker.

    #: A worker silent for this long loses its attempts. A restart of Redis, or a pause of the machine, is shorter.
    lease_s: float = 15.0
    #: Interval at which a worker renews its leases: five times within a lease.
    heartbeat_s: float = 3.0
    #: Interval of a worker's slow checks: devices, machine, unneeded processes, waiting trials. nvidia-smi takes up to
    #: a second.
    round_s: float = 10.0
    #: A worker reconnects if it has taken no trial for this long although trials waited.
    stuck_s: float = 60.0
    #: Connections unused for this long are closed. The pauses between heartbeats are shorter.
    unused_s: float = 10.0
    #: How long a device may be idle before its worker warns.
    idle_s: float = 600.0
    #: How long a stopped trial has for its ``finally`` blocks before its group gets SIGTERM.
    stop_grace_s: float = 10.0
    #: The same for a paused trial: a trainable class finishes its step and saves in that time.
    pause_grace_s: float = 600.0
    #: Time from SIGTERM to SIGKILL of its group.
    terminate_grace_s: float = 5.0
    #: A zygote sends a message each second. This is its longest silence after its trial's process has ended.
    zygote_silence_s: float = 10.0
    #: Timeout for a zygote to start a trial, on a swapping machine.
    zygote_start_s: float = 30.0
    #: Timeout for a zygote to accept a message or send the rest of one.
    zygote_exchange_s: float = 10.0
    #: Timeout for a zygote to kill its trial and end. Afterwards it is killed.
    zygote_close_s: float = 5.0
    #: Interval of checks of an importing process. It is killed if two checks in a row find it stopped.
    import_look_s: float = 5.0
    #: How long a device waits for its first probe.
    first_probe_s: float = 15.0
    #: Timeout for the list of GPUs. Their driver may have to be loaded first.
    gpu_list_s: float = 30.0
    #: Timeout for a GPU's driver. It may have to be loaded first, or may hang.
    gpu_answer_s: float = 10.0
    #: Pause after a GPU's driver has not answered.
    gpu_pause_s: float = 60.0
    #: How long a GPU's driver may take to free a dead process's memory.
    gpu_return_s: float = 30.0
    #: Interval of queries until that memory is free. A query costs a millisecond.
    gpu_poll_s: float = 0.1
    #: Timeout of a health check. It delays a trial, and a hanging driver never answers.
    health_check_s: float = 30.0
    #: How long a slot counts as healthy after a check, unless an attempt fails there.
    sound_s: float = 300.0
    #: Interval of checks of all output files. In between, a trial may write about a gigabyte.
    look_at_logs_s: float = 0.5
    #: Interval of checks that the log folder is writable.
    try_logs_s: float = 10.0
    #: Retry interval of a write refused by a full server.
    full_retry_s: float = 1.0
    #: If an attempt's data waits for Redis for less than this, the wait is not reported.
    least_wait_s: float = 1.0
    #: Interval of the check for ended scripts and scripts that wait for a slot.
    look_at_scripts_s: float = 0.5
    #: How long a fully busy worker leaves a submission to other workers. A half busy one waits half as long.
    spread_s: float = 4.0

    # The server of a run on one machine.

    #: Timeout for the start of a server without data.
    server_start_s: float = 10.0
    #: Time for a server to flush its append-only file before it is killed.
    server_stop_s: float = 5.0
    #: A server that a previous driver left may be stopping. If it still answers after this time, it is not.
    handover_answering_s: float = 1.0

    # Screens and tools.

    #: Pause between checks of the fleet while workers drain.
    drain_look_s: float = 0.2
    #: Added to the time that a draining worker needs. The fleet lists a dead worker until its heartbeat expires.
    drain_register_s: float = 20.0
    #: Timeout of an answer for Prometheus, which waits 10 s.
    figures_answer_s: float = 3.0
    #: How long the page keeps following an experiment that nobody views.
    linger_s: float = 30.0
    #: How long the page waits for an entry in one read. A closed feed ends within this time.
    feed_wait_s: float = 0.5
    #: Interval of the page's checks for a driver, and of retries.
    feed_state_s: float = 2.0
