"""Decoding of stored definitions. Names of version 0.1 are replaced by this version's names."""

from __future__ import annotations

import reprlib
from typing import Any, Final

from mqtune.core.codec import Body, decode_value
from mqtune.core.errors import MessageVersionError

#: Earlier names of options and of requests' arguments, with the names of this version.
_OPTIONS: Final = {
    "ttl_s": "timeout_s",
    "metric_from": "metric_required",
    "on_odd_report": "on_invalid_report",
}
_METRIC_FROM: Final = {"first": "at_first_report", "later": "eventually"}
#: The values of a time limit's former argument ``of``, with the equal values of ``count``.
_TIME_LIMIT_OF: Final = {"experiment": "wall_time", "driver": "driver_time", "trials": "trial_time"}


def decode_definition(experiment: str, kept: bytes | None) -> Body:
    """Decode the definition of an experiment.

    Raises:
        MessageVersionError: the definition is missing or malformed.
    """
    if kept is None:
        raise MessageVersionError(f"experiment {experiment!r} has no definition: it does not exist, or was deleted")
    try:
        definition = decode_value(kept)
    except ValueError as error:
        raise MessageVersionError(f"experiment {experiment!r} has a definition that can't be read: {error}") from None
    if not isinstance(definition, dict):
        raise MessageVersionError(
            f"experiment {experiment!r} has a definition that can't be read: {reprlib.repr(definition)} is not a dict"
        )
    return with_new_names(definition)


def with_new_names(options: Body) -> Body:
    """Replace earlier names in a definition, a part of one, or a request's arguments."""
    renamed = {_OPTIONS.get(name, name): value for name, value in options.items()}
    if "metric_from" in options:
        renamed["metric_required"] = _METRIC_FROM.get(str(options["metric_from"]), options["metric_from"])
    if "stop" in options:
        renamed["stop"] = _stop_rule(options["stop"])
    return renamed


def _stop_rule(rule: Any) -> Any:
    if not isinstance(rule, dict):
        return rule
    if isinstance(rule.get("rules"), list):
        return {**rule, "rules": [_stop_rule(inner) for inner in rule["rules"]]}
    if rule.get("rule") != "time_limit" or "of" not in rule:
        return rule
    counted = _TIME_LIMIT_OF.get(str(rule["of"]), rule["of"])
    return {name: value for name, value in rule.items() if name != "of"} | {"count": counted}
