"""Processes of a gang find each other, and only seat 0 reports, saves and asks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from attempts import AttemptHere, own_metrics

import mqtune
from mqtune.core.trial import AttemptEnd
from mqtune.services.gangs.worker import variables_of

NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT"]
SECOND: dict[str, Any] = {"seat": 1, "seats": 3, "address": "10.0.0.7:4123"}
OF_SECOND = ["1", "3", "0", "1", "1", "3", "10.0.0.7", "4123"]
SAYS = "this is seat 1 of 3 of the trial: only seat 0 reports and saves\n"


@pytest.fixture(autouse=True)
def kept_environment() -> Iterator[None]:
    """Give an attempt in this process an environment with names that other programs use."""
    with patch.dict(os.environ):
        for name in NAMES:
            os.environ.pop(name, None)
        yield


Seat = Callable[..., AttemptHere]


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[Seat]:
    """Make an attempt in this process, by default in the second seat of three."""

    def made(**message: Any) -> AttemptHere:
        where = {**SECOND, **message}
        place = where["seat"], where["seats"], where["address"]
        where["environment"] = variables_of(*place) if where["seats"] > 1 else {}
        return stack.enter_context(contextlib.closing(AttemptHere(tmp_path, **where)))

    with contextlib.ExitStack() as stack:
        yield made


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (SECOND, OF_SECOND),
        ({**SECOND, "seat": 0}, ["0", "3", "0", "1", "0", "3", "10.0.0.7", "4123"]),
        ({**SECOND, "address": "[::1]:80"}, [*OF_SECOND[:6], "::1", "80"]),
        ({**SECOND, "address": "node-7.lan:80"}, [*OF_SECOND[:6], "node-7.lan", "80"]),
        ({"seat": 0, "seats": 1, "address": ""}, [None] * 8),
    ],
)
def test_seats_find_each_other_by_variables(seat: Seat, message: dict[str, Any], found: list[str | None]) -> None:
    seen = []

    attempt = seat(**message)
    ending = attempt.run(lambda _: seen.append([os.environ.get(name) for name in NAMES]))

    assert (ending.end, ending.error) == (AttemptEnd.COMPLETED, "")
    assert seen == [found]


def test_another_seat_counts_its_reports_and_sends_none(seat: Seat, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = seat(sync="lockstep")
    last = []

    def train(_config: dict[str, Any]) -> None:
        for loss in (3.0, 2.0):
            mqtune.report({"loss": loss})
            last.append(attempt.session.last_metrics)
        mqtune.save_checkpoint({"epoch": 1})

    assert attempt.run(train).end is AttemptEnd.COMPLETED
    assert attempt.frames() == []
    assert [own_metrics(row) for row in last] == [{"loss": 3.0}, {"loss": 2.0}]
    assert [row["training_iteration"] for row in last] == [1, 2]
    assert capsys.readouterr().err == SAYS


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: mqtune.report({"loss": object()}), "loss"),
        (lambda: mqtune.report({"loss": 1}, checkpoint={"epoch": object()}), "epoch"),
        (lambda: mqtune.save_checkpoint("nowhere"), "not there"),
        (lambda: mqtune.ask({"what": 1}), "this is seat 1 of the trial, and only seat 0 may ask"),
    ],
)
def test_another_seat_may_not_ask_and_its_arguments_are_checked(seat: Seat, call: Callable[[], object], error: str):
    ending = seat().run(lambda _: call())

    assert ending.end is AttemptEnd.FAILED
    assert error in ending.error
