"""The checker of quotas itself: claims within a quota pass, one beyond is caught, and so is what stays held back."""

from __future__ import annotations

from typing import Any

from looks import Look
from observed import Entry
from quota_check import STARVED_S, check_quotas, check_starved

LEASE_S = 5.0
#: Looks are this far apart.
EVERY_S = 0.5


def entry(at: float, kind: str, trial: str = "", **more: Any) -> Entry:
    return Entry(f"{round(at * 1000)}-0", kind, {"trial": trial, "attempt": 1, **more})


def looks(until: float, quota: dict[str, tuple[float, float, int]]) -> list[Look]:
    """Looks up to a time; a quota has when it was set and lifted, and its slots."""
    times = [place * EVERY_S for place in range(int(until / EVERY_S) + 1)]
    return [
        Look(at, {name: slots for name, (begin, end, slots) in quota.items() if begin <= at < end}, {}) for at in times
    ]


def beyond(entries: dict[str, list[Entry]], seen: list[Look]) -> list[str]:
    found, _ = check_quotas(entries, seen, LEASE_S, [])
    return [violation.what.split()[0] for violation in found]


def test_claims_of_all_experiments_under_a_quota_are_counted_together() -> None:
    both = {
        "a-1": [entry(2.1, "started", "0001"), entry(2.2, "started", "0002")],
        "a-2": [entry(2.3, "started", "0001")],
        "b": [entry(2.25, "started", "0001")],
    }

    assert beyond(both, looks(10, {"a-*": (1, 9, 3)})) == []
    assert beyond(both, looks(10, {"a-*": (1, 9, 2)})) == ["a-2/0001"]
    assert check_quotas(both, looks(10, {"a-*": (1, 9, 2)}), LEASE_S, [])[1] == 3
    assert beyond(both, looks(10, {"*": (1, 9, 3)})) == ["a-2/0001"]


def test_a_lowering_lets_what_runs_go_on_and_nothing_else_start() -> None:
    running = [entry(2.1, "started", "0001"), entry(2.2, "started", "0002")]
    leases = {("a", "0001"): 12.0, ("a", "0002"): 12.0}
    lowered = [
        look._replace(quotas={"a": 2 if look.at < 4 else 1}, leases=leases if look.at > 3 else {})
        for look in looks(10, {})
    ]

    assert beyond({"a": running}, lowered) == []
    assert beyond({"a": [*running, entry(5.1, "started", "0003")]}, lowered) == ["a/0003"]
    # Between two looks with different quotas the larger one may still have been in force.
    assert beyond({"a": [*running[:1], entry(3.8, "started", "0003")]}, lowered) == []


def test_what_a_silent_worker_ran_counts_until_its_lease_is_over() -> None:
    def then(at: float) -> dict[str, list[Entry]]:
        return {"a": [entry(2.1, "started", "0001"), entry(at, "started", "0002")]}

    assert beyond(then(7.0), looks(20, {"a": (1, 19, 1)})) == ["a/0002"]
    assert beyond(then(7.2), looks(20, {"a": (1, 19, 1)})) == []


def test_what_goes_on_after_a_quota_is_not_starved_and_what_does_not_is() -> None:
    seen = looks(3 + 2 * STARVED_S, {"a": (1, 3, 0)})

    assert check_starved({"a": [entry(20, "started", "0001")]}, seen) == []
    assert check_starved({"a": [entry(2, "closed", outcome="finished")]}, seen) == []
    assert check_starved({"a": [], "b": [entry(20, "started", "0001")]}, seen) != []
    assert check_starved({"a": [entry(3 + 1.5 * STARVED_S, "started", "0001")]}, seen) != []
    # A run that ends before has no time to tell.
    assert check_starved({"a": []}, seen[:20]) == []
