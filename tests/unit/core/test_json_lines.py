"""Logs as JSON lines have fields: the experiment, the trial, the attempt and the worker."""

from __future__ import annotations

import json
import logging
from typing import Any

from mqtune.core.json_lines import JsonLines, logged_as


def line_of(formatter: logging.Formatter, *args: object, **given: Any) -> dict[str, Any]:
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(formatter.format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("mqtune.test")
    logger.addHandler(handler)
    try:
        logger.warning(*args, **given)
    finally:
        logger.removeHandler(handler)
    (line,) = found
    assert "\n" not in line
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def test_a_record_has_the_fields_of_the_code_around_its_call_and_no_others_afterwards() -> None:
    formatter = JsonLines()

    with logged_as(experiment="e", trial="0001"), logged_as(attempt=2):
        inside = line_of(formatter, "text")
    outside = line_of(formatter, "text")

    assert (inside["experiment"], inside["trial"], inside["attempt"]) == ("e", "0001", 2)
    assert not {"experiment", "trial", "attempt"} & outside.keys()
