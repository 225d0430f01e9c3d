"""``mqtune fleet quota``: limits the running trials of experiments by patterns of names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Unpack

import click

from mqtune.cli.output import broker_option, json_option, print_json, print_table, say
from mqtune.cli.servers import PATIENCE_S, redis_at
from mqtune.core.errors import ConfigurationError
from mqtune.core.priorities import PRIORITIES
from mqtune.results.experiments import duration

if TYPE_CHECKING:
    from mqtune.services.shares.quotas import CapParts

_HOUR_S: Final = 3_600.0


#: The word that removes a quota and its caps.
_NO_QUOTA: Final = "none"


def _slots(_context: click.Context, _argument: click.Parameter, given: str | None) -> int | str | None:
    """Return the argument as a number of slots, or "none"."""
    if given is None or given == _NO_QUOTA:
        return given
    if not given.isdecimal():
        raise click.BadParameter(f"{given!r} is not a number of slots; give a number such as 16, or {_NO_QUOTA}")
    return int(given)


@click.command("quota")
@click.argument("pattern", required=False)
@click.argument("slots", required=False, callback=_slots, metavar="[SLOTS|none]")
@broker_option("The Redis server that the experiments use.", required=True)
@click.option("--priority", type=click.Choice(PRIORITIES), help="Set the highest priority that they may ask for.")
@click.option("--share", type=float, help="Set the largest share that they may ask for.")
@click.option(
    "--journal-mb",
    type=float,
    help="Set the largest journal_mb that they may ask for, in millions of bytes of entries.",
)
@click.option(
    "--aging",
    "aging_h",
    type=click.FloatRange(min=0),
    metavar="HOURS",
    help="An experiment that had no slot for this long gets one for one trial, whatever its priority. 0: never. This "
    "setting is for all experiments.",
)
@json_option
def _quota(
    pattern: str | None,
    slots: int | str | None,
    broker: str,
    aging_h: float | None,
    *,
    as_json: bool,
    **parts: Unpack[CapParts],
) -> None:
    """List quotas, or limit the running trials of matching experiments: 'team-a-*' 16.

    At the limit, no further trial of these experiments starts; running trials continue. none removes the quota and the
    caps of PATTERN. --priority, --share and --journal-mb cap these settings of each experiment: 'team-a-*' --priority
    normal. Changes need an operator's account for all experiments.
    """
    from mqtune.journal.server.owner import person  # noqa: PLC0415
    from mqtune.services.ownership.audit import note  # noqa: PLC0415
    from mqtune.services.shares.quotas import Quotas  # noqa: PLC0415

    given = {part: value for part, value in parts.items() if value is not None}
    if given and pattern is None:
        raise click.UsageError("a cap needs a PATTERN of experiments: mqtune fleet quota 'team-a-*' --priority normal")
    with redis_at(broker, role="operator") as client:
        quotas = Quotas(client, patience_s=PATIENCE_S)
        if pattern is not None and slots == _NO_QUOTA:
            note(client, "drop-quota", pattern)
            if not quotas.drop(pattern):
                raise ConfigurationError(f"there is no quota for {pattern!r}; list all: mqtune fleet quota")
        elif pattern is not None and isinstance(slots, int):
            note(client, "quota", pattern, f"{slots} slots")
            quotas.set(pattern, slots)
        if pattern is not None and given:
            note(client, "cap", pattern, ", ".join(f"{part}={value}" for part, value in given.items()))
            quotas.set_cap(pattern, str(person(client)), **parts)
        if aging_h is not None:
            note(client, "aging", "*", f"{aging_h:g} h")
            quotas.set_aging(aging_h * _HOUR_S or math.inf)
        limits, capped, aging_s = quotas.all(), quotas.caps(), quotas.aging_s()
    if as_json:
        print_json(
            [
                *(quota._asdict() for quota in limits),
                *({"pattern": name, **cap._asdict()} for name, cap in capped.items()),
            ]
        )
        return
    if not limits:
        say("there are no quotas")
    else:
        print_table(["experiments", "slots", "running"], [[name, str(most), str(now)] for name, most, now in limits])
    if capped:
        rows = (
            [name, cap.priority, *("any" if most == math.inf else f"{most:g}" for most in cap[1:-1]), cap.by]
            for name, cap in capped.items()
        )
        heads = ["highest priority", "largest share", "largest journal_mb"]
        print_table(["experiments", *heads, "set by"], rows)
    if aging_s < math.inf:
        say(f"an experiment without a slot gets one after {duration(aging_s)}, whatever its priority")
    else:
        say("an experiment of low priority may wait for a slot forever")


COMMANDS: Final = {"quota": _quota}
