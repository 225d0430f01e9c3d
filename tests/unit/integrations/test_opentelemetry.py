"""An experiment as a trace: which spans there are, with which times, and each once, whatever happens to drivers and the collector."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
from logged import tuner

import mqtune
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.testing.worlds import WORLDS

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from mqtune.integrations import OpenTelemetry


def run(new_callback: Callable[[], mqtune.Callback], *, cut_after: Sequence[int] = ()) -> mqtune.Results:
    def arguments() -> dict[str, Any]:
        return {"scheduler": mqtune.PromotionASHA(9, grace_period=3), "callbacks": [new_callback()]}

    return WORLDS["failures"].run(arguments, cut_after=cut_after)


def names(collector: InMemorySpanExporter) -> list[tuple[object, object]]:
    """The trial and attempt of each span, in order."""
    attributes = [span.attributes or {} for span in collector.get_finished_spans()]
    return sorted((each.get("mqtune.trial", ""), each.get("mqtune.attempt", 0)) for each in attributes)


def expected(results: mqtune.Results) -> list[tuple[object, object]]:
    attempts = [(result.id, attempt.number) for result in results for attempt in result.trial.attempts]
    return sorted([("", 0), *[(result.id, 0) for result in results], *attempts])


def test_spans_have_the_journals_times_their_parents_and_how_they_ended() -> None:
    collector = InMemorySpanExporter()

    results = tuner(OpenTelemetry(exporter=collector)).run()

    spans = {
        span.name if span.parent is None else (span.attributes or {})["mqtune.trial"] + " " + span.name[:7]: span
        for span in collector.get_finished_spans()
    }
    assert sorted(spans) == ["0001 attempt", "0001 trial 0", "0002 attempt", "0002 trial 0", "mine"]
    assert len({span.context.trace_id for span in spans.values()}) == 1
    for result in results:
        trial, attempt = spans[f"{result.id} trial 0"], spans[f"{result.id} attempt"]
        assert trial.parent.span_id == spans["mine"].context.span_id
        assert attempt.parent.span_id == trial.context.span_id
        recorded = result.trial.attempts[0]
        assert [attempt.start_time, attempt.end_time] == [int(recorded.started_at * 1e9), int(recorded.ended_at * 1e9)]
        assert trial.start_time <= attempt.start_time < attempt.end_time <= trial.end_time <= spans["mine"].end_time
        assert trial.attributes["mqtune.status"] == result.status.value
        assert trial.attributes["mqtune.config.x"] == result.config["x"]
        assert trial.attributes["mqtune.config.layers.widths"] == "[32, 8]"
        assert attempt.attributes["mqtune.reports"] == 3
    codes = [spans[f"{name} attempt"].status.status_code for name in ("0001", "0002")]
    assert codes == [StatusCode.OK, StatusCode.ERROR]
    assert "bad luck" in spans["0002 attempt"].status.description
    assert spans["0002 attempt"].attributes["error.type"] == "RuntimeError"
    assert spans["mine"].attributes["mqtune.best_trial"] == "0001"


def test_each_is_sent_once_when_drivers_are_killed() -> None:
    collector, made = InMemorySpanExporter(), []

    class Killed(OpenTelemetry):
        def on_end(self) -> None:
            """Nothing, unless it is the last driver's."""
            if len(made) == 4:
                super().on_end()

    def new() -> Killed:
        made.append(Killed(exporter=collector))
        return made[-1]

    results = run(new, cut_after=[15, 25, 10])

    assert len(made) == 4
    assert names(collector) == expected(results)


def test_written_later_they_have_the_same_ids_and_times() -> None:
    at_once, later = InMemorySpanExporter(), InMemorySpanExporter()
    results = run(lambda: OpenTelemetry(exporter=at_once))

    OpenTelemetry(exporter=later).write(mqtune.Results.load(results.name))

    def told(collector: InMemorySpanExporter) -> list[str]:
        return sorted(span.to_json() for span in collector.get_finished_spans())

    assert told(later) == told(at_once)
    away = Mock(**{"export.return_value": SpanExportResult.FAILURE})
    with pytest.raises(MqtuneError, match="could not be sent"):
        OpenTelemetry(exporter=away).write(results)


def test_without_the_package_for_otlp_a_run_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)

    with pytest.raises(ConfigurationError, match=r"install.*opentelemetry.*, or give an exporter"):
        tuner(OpenTelemetry()).run()
