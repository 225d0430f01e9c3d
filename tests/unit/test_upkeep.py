"""What the driver does now and then: it takes no lease for lost that its worker had no chance to renew."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import Bench

from mqtune.trial import AttemptEnd
from mqtune.upkeep import REAP_GRACE_S, REAP_S, STALL_S

#: A worker's, so that leases run out here.
LEASE_S = 15.0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """One running trial, whose lease is new, when the driver has looked at leases for a while."""
    bench = Bench(tmp_path, max_trials=1).step().start()
    bench.worker.renew(list(bench.claims.values()), LEASE_S)
    return wait(bench, REAP_GRACE_S)


def wait(bench: Bench, seconds: float) -> Bench:
    """Let time pass, and have the driver look as often as it does."""
    until = bench.clock.now + seconds
    while bench.clock.now < until:
        bench.clock.now += REAP_S
        bench.step()
    return bench


def ends(bench: Bench) -> list[AttemptEnd | None]:
    return [attempt.end for attempt in bench.trial().attempts]


def test_a_lease_that_runs_out_before_the_drivers_eyes_is_lost_at_once(bench: Bench) -> None:
    wait(bench, LEASE_S - REAP_GRACE_S + 2 * REAP_S)

    assert ends(bench)[0] is AttemptEnd.LOST


def test_after_a_freeze_workers_have_their_turn_before_their_leases_are_reaped(bench: Bench) -> None:
    """Neither the driver nor anybody else has seen an error: the server, or the machine, did nothing for a while."""
    bench.clock.now += 2 * LEASE_S
    bench.step()
    wait(bench, REAP_GRACE_S / 2)
    bench.worker.renew(list(bench.claims.values()), LEASE_S)

    wait(bench, REAP_GRACE_S)

    assert ends(bench) == [None]


def test_after_a_freeze_a_lease_that_nobody_renews_is_reaped_after_the_grace(bench: Bench) -> None:
    bench.clock.now += 2 * LEASE_S
    bench.step()
    assert ends(bench) == [None]

    wait(bench, REAP_GRACE_S + REAP_S)

    assert ends(bench)[0] is AttemptEnd.LOST


def test_a_look_that_itself_waited_for_the_server_reaps_nothing(bench: Bench) -> None:
    journal = bench.driver._journal
    expired = journal.expired

    def slow_to_answer() -> list[str]:
        bench.clock.now += 2 * LEASE_S
        found = expired()
        journal.outages += 1
        return found  # type: ignore[return-value]

    journal.expired = slow_to_answer  # type: ignore[assignment, method-assign]
    bench.clock.now += REAP_S
    bench.step()
    assert ends(bench) == [None]

    journal.expired = expired  # type: ignore[method-assign]
    bench.worker.renew(list(bench.claims.values()), LEASE_S)
    wait(bench, REAP_GRACE_S)
    assert ends(bench) == [None]


def test_a_driver_that_is_a_little_late_does_not_put_off_what_is_lost(bench: Bench) -> None:
    bench.clock.now += STALL_S
    bench.step()
    wait(bench, REAP_S)

    assert ends(bench)[0] is AttemptEnd.LOST
