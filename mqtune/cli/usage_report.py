"""``mqtune usage``: sums up how trials used machines, from journals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from mqtune.cli.list import listed_once
from mqtune.cli.output import broker_option, json_option, print_json, print_table, say
from mqtune.cli.place import is_asked_for
from mqtune.cli.servers import PATIENCE_S, client_of, redis_at
from mqtune.cli.terms import past_time
from mqtune.core.errors import AccessDenied, BrokerUnavailable, MqtuneError
from mqtune.core.owner import NOBODY, Owner
from mqtune.core.text import printable
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile, is_written
from mqtune.results.experiments import created_event, first_events, saved_experiments
from mqtune.services.usage.totals import JournalUse, Used

_HOUR_S: Final = 3_600.0
_J_PER_KWH: Final = 3.6e6
#: The first heads of the table for each value of --by.
_HEADS: Final = {
    "owner": ("owner", "experiments"),
    "team": ("account", "experiments"),
    "experiment": ("experiment", "owner"),
}
_SUMS: Final = ("trials", "attempts", "GPU-hours", "slot-hours", "kWh", "waited")
_DEFAULT: Final = "default"


class _Share(NamedTuple):
    """An experiment and its use of machines."""

    experiment: str
    owner: Owner
    used: Used


@click.command("usage")
@click.option(
    "--by", type=click.Choice([*_HEADS]), default="owner", show_default=True, help="Print a row for each of these."
)
@click.option(
    "--since",
    callback=lambda _, __, given: past_time(given),
    metavar="TIME",
    default="30d",
    show_default=True,
    help="Count from this time on: 30d (ago), 12h, 4w, or a date.",
)
@broker_option("A Redis server; its experiments are counted, too.")
@json_option
def command(by: str, since: float, broker: str | None, *, as_json: bool) -> None:
    """Report the GPU-hours and slot-hours of trials, and their energy where it was measured.

    Each experiment on a broker or on this machine is counted once, also archived ones. Deleted, simulated and imported
    experiments are not counted. A team is the server's account that created an experiment.
    """
    until = time.time()
    shares, problems = [], []
    for place in _places(broker):
        try:
            share = _share_of(place, broker, since, until)
        except (BrokerUnavailable, AccessDenied):
            raise
        except (MqtuneError, OSError) as error:
            # Another program or version may have written it. Other experiments are still counted.
            problems.append(f"{place['name']} is not counted: {error}")
            continue
        if share is not None:
            shares.append(share)
    for text in problems:
        click.echo(f"mqtune: {printable(text)}", err=True)
    groups = _grouped(shares, by)
    if as_json:
        described = [{**_described(group, by), **_figures(used)} for group, used in groups]
        print_json({"since": since, "until": until, "by": by, "rows": described, "problems": problems})
        return
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(since))
    if not groups:
        say(f"no trial has run since {when}")
        return
    total = sum((used for _, used in groups), Used())
    rows = [[*_heading(group, by), *_cells(used)] for group, used in groups]
    rows.append(["all", "" if by == "experiment" else str(len(shares)), *_cells(total)])
    heads = [*_HEADS[by], *_SUMS]
    # The column of waited hours is omitted if it is empty.
    columns = len(heads) if total.waited_slot_s else len(heads) - 1
    print_table(heads[:columns], [row[:columns] for row in rows])
    if 0 < total.measured_gpu_s < total.gpu_s:
        say(f"energy was measured for {100 * total.measured_gpu_s / total.gpu_s:.0f} % of the GPU-hours")
    if total.waited_slot_s:
        say(
            "waited: slot-hours in which trials' data waited for Redis, among them "
            f"{total.waited_gpu_s / _HOUR_S:.1f} GPU-hours"
        )
    say(f"since {when}")


def _places(broker: str | None) -> Iterator[dict[str, Any]]:
    """Yield the experiments on this machine and on a broker as plain values, each once."""
    here = [] if broker is not None and is_asked_for() else list(map(_described_here, saved_experiments()))
    remote = _described_on(broker) if broker else []
    alone, shared = listed_once(here, remote)
    yield from alone
    yield from shared


def _described_here(folder: Path) -> dict[str, Any]:
    plain = {"name": folder.name, "place": str(folder), "folder": folder}
    try:
        return {**plain, "created_at": created_event(first_events(JournalFile(folder / JOURNAL_FILE)), folder).at}
    except (MqtuneError, OSError) as error:
        return {**plain, "error": str(error)}


def _described_on(url: str) -> list[dict[str, Any]]:
    places: list[dict[str, Any]] = []
    with client_of(url) as client:
        for experiment in client.experiments():
            plain = {"name": experiment.name, "place": client.place}
            try:
                if (state := experiment.state()) is not None:
                    last = time.time() - state.age_s
                    places.append({**plain, "created_at": state.created_at, "last": last, "driven": state.is_driven})
            except (BrokerUnavailable, AccessDenied):
                raise
            except MqtuneError as error:
                places.append({**plain, "error": str(error)})
    return places


def _share_of(place: dict[str, Any], broker: str | None, since: float, until: float) -> _Share | None:
    """Return an experiment's use in a span of time, or None if it used nothing."""
    if "error" in place:
        raise MqtuneError(place["error"])
    if "last" in place:
        if place["last"] < since and not place["driven"]:
            return None
        from mqtune.journal.files.reading import entries_after  # noqa: PLC0415 - as above
        from mqtune.journal.redis import RedisJournal  # noqa: PLC0415 - as above

        with redis_at(broker or "") as client:
            journal = RedisJournal(client, place["name"], patience_s=PATIENCE_S)
            use, is_driven = JournalUse(entries_after(journal)), place["driven"]
    else:
        copy = place["folder"] / JOURNAL_FILE
        if copy.stat().st_mtime < since:
            return None
        use, is_driven = JournalUse(JournalFile(copy).read()), is_written(copy)
    used = use.within(since, until, is_driven=is_driven)
    return _Share(place["name"], use.owner, used) if used.attempts else None


def _grouped(shares: list[_Share], by: str) -> list[tuple[list[_Share], Used]]:
    """Return each group's experiments with their summed use, the largest first."""
    groups: dict[object, list[_Share]] = {}
    for number, share in enumerate(shares):
        person = share.owner.user, share.owner.account
        # Two experiments may have the same name, here and on a broker.
        key = {"owner": person, "team": share.owner.account, "experiment": number}[by]
        groups.setdefault(key, []).append(share)
    summed = [(group, sum((share.used for share in group), Used())) for group in groups.values()]
    return sorted(summed, key=lambda row: (-row[1].gpu_s, -row[1].slot_s))


def _heading(group: list[_Share], by: str) -> list[str]:
    share, count = group[0], str(len(group))
    return {
        "owner": [printable(_person(share.owner)), count],
        "team": [printable(share.owner.account or _DEFAULT), count],
        "experiment": [printable(share.experiment), printable(_person(share.owner))],
    }[by]


def _person(owner: Owner) -> str:
    """Return an owner in words, without the machine."""
    return "not known" if owner == NOBODY else str(owner._replace(host=""))


def _described(group: list[_Share], by: str) -> dict[str, object]:
    owner = group[0].owner
    person = {"account": owner.account, "user": owner.user}
    named: dict[str, dict[str, object]] = {
        "owner": {"owner": person, "experiments": len(group)},
        "team": {"account": owner.account, "experiments": len(group)},
        "experiment": {"experiment": group[0].experiment, "owner": person},
    }
    return named[by]


def _figures(used: Used) -> dict[str, object]:
    return {
        "trials": used.trials,
        "attempts": used.attempts,
        "gpu_hours": used.gpu_s / _HOUR_S,
        "slot_hours": used.slot_s / _HOUR_S,
        "energy_kwh": used.energy_j / _J_PER_KWH if used.measured_gpu_s else None,
        "measured_gpu_hours": used.measured_gpu_s / _HOUR_S,
        "waited_gpu_hours": used.waited_gpu_s / _HOUR_S,
        "waited_slot_hours": used.waited_slot_s / _HOUR_S,
    }


def _cells(used: Used) -> list[str]:
    energy = f"{used.energy_j / _J_PER_KWH:.1f}" if used.measured_gpu_s else ""
    hours = (f"{seconds / _HOUR_S:.1f}" for seconds in (used.gpu_s, used.slot_s))
    waited = f"{used.waited_slot_s / _HOUR_S:.1f}" if used.waited_slot_s else ""
    return [str(used.trials), str(used.attempts), *hours, energy, waited]


COMMANDS: Final = {"usage": command}
