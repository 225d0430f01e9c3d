"""Holds what was claimed in a run against the quotas that an operator had set: from the journals, and from looks at leases."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from looks import Look
from observed import Entry, Found, Violation, written_at

#: How long after a quota is gone something that it held back has started, in seconds: faults are over by then, and what waits
#: for another worker, another driver or a publication has had its turn.
STARVED_S: Final = 60.0
#: By how much an entry may be younger than its id says, in seconds.
_ROUNDED_S: Final = 0.002

_Trial = tuple[str, str]


class Span(NamedTuple):
    """An attempt, from its claim to its journaled end, by the server's clock; ``end`` is infinite for one without."""

    trial: _Trial
    begin: float
    end: float


def check_quotas(
    journals: Mapping[str, Sequence[Entry]],
    looks: Sequence[Look],
    lease_s: float,
    forgot: Sequence[tuple[float, float]],
) -> tuple[list[Violation], int]:
    """Return each claim that went beyond a quota, and how many claims fell under one.

    An attempt counts while its lease holds, from its claim on if there was a quota then. Else it surely does from the second heartbeat on
    that comes after that was set: the first renews its lease before it counts it, in a message of its own. What can't be told for the time
    between two looks counts for the claim.

    Args:
        journals: the entries of each experiment.
        looks: at the server, in their order.
        lease_s: for how long a claim or a heartbeat has the lease.
        forgot: when claims may count for nothing, as the server was set back, by its own clock.
    """
    found = Found()
    times = [look.at for look in looks]
    spans = list(_spans(journals))
    # The seats of a gang end one by one, and their attempt with the last.
    gangs = {span.trial[0] for span in spans if "~" in span.trial[1]}
    spans = [_until_seen(span, looks, times) if span.trial[0] in gangs else span for span in spans]
    since, renewed = _since(looks), _renewed(looks)
    under = 0
    for claim in sorted(spans, key=lambda span: span.begin):
        before, behind = bisect_right(times, claim.begin) - 1, bisect_right(times, claim.begin + _ROUNDED_S)
        if before < 0 or behind == len(looks) or any(begin <= claim.begin <= end for begin, end in forgot):
            continue
        there = [look.quotas for look in looks[before : behind + 1]]
        for pattern in set(there[0]).intersection(*there):
            if not fnmatchcase(claim.trial[0], pattern):
                continue
            under += 1
            most = max(quotas[pattern] for quotas in there)
            counted = [
                span.trial
                for span in spans
                if span.begin <= claim.begin < span.end
                and fnmatchcase(span.trial[0], pattern)
                and max(span.begin + lease_s, looks[before].leases.get(span.trial, 0.0)) > claim.begin
                and max(span.begin, renewed[before].get(span.trial, 0.0) - lease_s) >= since[before][pattern]
            ]
            if len(counted) > most:
                found.wrong(
                    "quota",
                    f"{'/'.join(claim.trial)} was claimed at {claim.begin:.3f} as one of {len(counted)} under "
                    f"{pattern!r}, which allowed {most}: {sorted(counted)}",
                )
    return found, under


def _since(looks: Sequence[Look]) -> list[dict[str, float]]:
    """Return for each look since when each quota was surely there without a break."""
    found: list[dict[str, float]] = []
    before: dict[str, float] = {}
    for look in looks:
        before = {pattern: before.get(pattern, look.at) for pattern in look.quotas}
        found.append(before)
    return found


def _renewed(looks: Sequence[Look]) -> list[dict[_Trial, float]]:
    """Return for each look until when each trial's lease was to hold before its newest renewal that was seen."""
    found: list[dict[_Trial, float]] = []
    newest: dict[_Trial, float] = {}
    before: dict[_Trial, float] = {}
    for look in looks:
        changed = {trial: newest[trial] for trial, until in look.leases.items() if newest.get(trial, until) < until}
        before, newest = {**before, **changed}, {**newest, **look.leases}
        found.append(before)
    return found


def _spans(journals: Mapping[str, Sequence[Entry]]) -> Iterator[Span]:
    """Yield the span of each attempt, and that of each further seat of it under the seat's own name."""
    for experiment, entries in journals.items():
        begun: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        for entry in entries:
            if entry.kind in ("started", "ended"):
                trial, attempt = entry.body["trial"], entry.body["attempt"]
                if entry.kind == "started":
                    seat = entry.body.get("seat", 0)
                    begun[trial, attempt][f"{trial}~{seat}" if seat else trial] = written_at(entry)
                else:
                    for name, begin in begun.pop((trial, attempt), {}).items():
                        yield Span((experiment, name), begin, written_at(entry))
        for seats in begun.values():
            for name, begin in seats.items():
                yield Span((experiment, name), begin, float("inf"))


def _until_seen(span: Span, looks: Sequence[Look], times: Sequence[float]) -> Span:
    """Return a span that ends with its seat's lease."""
    before = bisect_right(times, span.begin + _ROUNDED_S)
    for look, following in itertools.pairwise(looks[before:]):
        if look.at >= span.end:
            break
        if span.trial in look.leases and span.trial not in following.leases:
            return span._replace(end=min(span.end, look.at))
    return span


def check_starved(journals: Mapping[str, Sequence[Entry]], looks: Sequence[Look]) -> list[Violation]:
    """Return each quota after whose end nothing that it had held back went on for long."""
    found = []
    for before, look in itertools.pairwise(looks):
        for pattern in before.quotas.keys() - look.quotas.keys():
            deadline = look.at + STARVED_S
            held = [entries for name, entries in journals.items() if fnmatchcase(name, pattern)]
            went_on = any(
                look.at < written_at(entry) <= deadline and entry.kind in ("started", "ended", "closed")
                for entries in held
                for entry in entries
            )
            # Nothing is left to go on with where all had ended before.
            were_over = all(_is_over(entries, look.at) for entries in held)
            if not went_on and not were_over and looks[-1].at > deadline:
                found.wrong(
                    "quota", f"{STARVED_S:g} s after {pattern!r} was lifted at {look.at:.3f} nothing has started"
                )
    return found


def _is_over(entries: Sequence[Entry], at: float) -> bool:
    closed = [entry for entry in entries if entry.kind == "closed" and written_at(entry) <= at]
    return bool(closed) and closed[-1].body["outcome"] == "finished"
