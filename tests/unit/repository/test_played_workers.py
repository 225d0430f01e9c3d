"""The workers that the benchmark of a fleet plays send what mqtune's own journal makes of their reports."""

from __future__ import annotations

from typing import Any, cast

from benchmarks.fleet.workers import Recorder
from mqtune.core.codec import pack_metrics, segment_bytes
from mqtune.core.trial import TrialId
from mqtune.journal.base import Claim, Segment
from mqtune.journal.redis import RedisJournal


def test_a_journal_whose_commands_are_recorded_reports_by_one_script() -> None:
    recorder = Recorder()
    claim = Claim(TrialId("0001"), 1, "token")
    data = segment_bytes("0001", 1, 1, [pack_metrics(1.0, {"loss": 0.5})])

    RedisJournal(cast("Any", recorder), "x").report([Segment(claim, 1, 1, 1.0, data)])

    (command,) = recorder.commands
    assert command[0] == "EVALSHA"
    assert data in command
