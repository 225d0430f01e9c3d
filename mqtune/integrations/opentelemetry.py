"""Exports an experiment as an OpenTelemetry trace."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqtune import Callback, TrialStatus
from mqtune.extend import Attempt, AttemptEnd, ConfigurationError, MqtuneError, Trial, importing, install_command
from mqtune.integrations.logger import FLUSH_S, plain_config

with importing("OpenTelemetry's SDK", "opentelemetry"):
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

if TYPE_CHECKING:
    from mqtune import Results
    from mqtune.extend import Experiment

#: The file with the keys of the sent spans, one in each line.
_SENT_FILE: Final = "opentelemetry.txt"
#: The key of the experiment's span. The keys of other spans are TRIAL and TRIAL/ATTEMPT.
_ROOT: Final = "."
#: OpenTelemetry's default limit for a request.
_MOST_SPANS: Final = 512
_NS: Final = 1_000_000_000
_FAILED: Final = frozenset({AttemptEnd.FAILED, AttemptEnd.LOST, TrialStatus.FAILED})
_COMPLETED: Final = frozenset({AttemptEnd.COMPLETED, TrialStatus.COMPLETED})

_Spans = dict[str, ReadableSpan]


class OpenTelemetry(Callback):
    """Sends a span for each ended attempt, each ended trial, and the finished experiment.

    Times are the journal's. Ids are derived from the experiment's name and creation time, so all drivers and ``write``
    produce one trace. Each span is sent once, despite killed drivers and outages of the collector: a file in the
    experiment's folder records sent spans. If a driver is killed between sending and recording, the next one sends
    these spans again, with the same ids.

    Args:
        endpoint: address for OTLP over HTTP; by default OTEL_EXPORTER_OTLP_ENDPOINT.
        exporter: used instead of OTLP. It is not shut down.

    Raises:
        ConfigurationError: the OTLP package is missing and no exporter is given, when a run begins.
    """

    interval_s = FLUSH_S

    def __init__(self, endpoint: str | None = None, *, exporter: SpanExporter | None = None) -> None:
        self._endpoint = endpoint
        self._given = exporter
        self._exporter: SpanExporter | None = None
        self._sent_file: Path | None = None
        self._sent: set[str] = set()
        self._waiting: _Spans = {}
        self._experiment: Experiment | None = None

    def setup(self, folder: Path) -> None:
        self._exporter = self._given or _otlp_exporter(self._endpoint)
        self._sent_file = folder / _SENT_FILE
        self._sent = set(self._sent_file.read_text(encoding="utf-8").split()) if self._sent_file.exists() else set()
        self._waiting = {}

    def on_start(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._add_all_spans(experiment)

    def on_attempt_end(self, trial: Trial, attempt: Attempt) -> None:
        self._add_spans(trial)

    def on_trial_end(self, trial: Trial) -> None:
        self._add_spans(trial)

    def on_step(self, waiting_for: str) -> None:
        self._send()

    def on_end(self) -> None:
        if self._experiment is not None:
            self._add_all_spans(self._experiment)
        self._send_and_close()

    def write(self, results: Results) -> None:
        """Send all spans that the journal has. Spans that were sent before have the same ids again.

        Raises:
            MqtuneError: the spans can't be sent.
        """
        self._exporter = self._given or _otlp_exporter(self._endpoint)
        self._sent_file, self._sent, self._waiting = None, set(), {}
        self._experiment = results.experiment
        self._add_all_spans(results.experiment)
        self._send_and_close()

    def _add_all_spans(self, experiment: Experiment) -> None:
        for trial in list(experiment.trials.values()):
            self._add_spans(trial)
        if experiment.outcome == "finished" and _ROOT not in self._sent:
            self._waiting[_ROOT] = _span_of_experiment(experiment)

    def _add_spans(self, trial: Trial) -> None:
        if self._experiment is not None:
            spans = _spans_of(self._experiment, trial)
            self._waiting |= {key: span for key, span in spans if key not in self._sent}

    def _send(self) -> None:
        while batch := dict(itertools.islice(self._waiting.items(), _MOST_SPANS)):
            if self._exporter is None or self._exporter.export([*batch.values()]) is not SpanExportResult.SUCCESS:
                kept = "" if self._sent_file is None else "; they are kept"
                raise MqtuneError(f"OpenTelemetry: {len(self._waiting)} spans could not be sent{kept}")
            self._sent.update(batch)
            for key in batch:
                del self._waiting[key]
            if self._sent_file is not None:
                with self._sent_file.open("a", encoding="utf-8") as file:
                    file.writelines(f"{key}\n" for key in batch)

    def _send_and_close(self) -> None:
        try:
            self._send()
        finally:
            if self._exporter is not None and self._given is None:
                self._exporter.shutdown()


def _otlp_exporter(endpoint: str | None) -> SpanExporter:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - or another
    except ImportError as error:
        raise ConfigurationError(
            f"OTLP can't be imported ({error}); {install_command('opentelemetry')}, or give an exporter"
        ) from error
    exporter: SpanExporter = OTLPSpanExporter(endpoint=endpoint)
    return exporter


def _spans_of(experiment: Experiment, trial: Trial) -> Iterator[tuple[str, ReadableSpan]]:
    """Yield key and span of each ended attempt of a trial, and of the trial if it has ended."""
    for attempt in trial.attempts:
        if attempt.end is not None:
            key = f"{trial.id}/{attempt.number}"
            yield key, _span_of_attempt(experiment, trial, attempt, key)
    if trial.status.is_terminal:
        yield trial.id, _span_of_trial(experiment, trial)


def _span_of_experiment(experiment: Experiment) -> ReadableSpan:
    trials = list(experiment.trials.values())
    attributes: dict[str, str | float] = {
        "mqtune.experiment": experiment.name,
        "mqtune.trials": len(trials),
        "mqtune.reason": experiment.reason,
    }
    if experiment.best is not None:
        attributes |= {
            "mqtune.best_trial": experiment.best.id,
            f"mqtune.best.{experiment.metric}": experiment.best.best_value,
        }
    times = [step.at for trial in trials for step in trial.history[-1:]]
    began_at = experiment.created_at or 0.0
    return _make_span(experiment, experiment.name, _ROOT, None, (began_at, max(times, default=began_at)), attributes)


def _span_of_trial(experiment: Experiment, trial: Trial) -> ReadableSpan:
    attributes: dict[str, str | float] = {
        "mqtune.experiment": experiment.name,
        "mqtune.trial": trial.id,
        "mqtune.status": trial.status.value,
        "mqtune.reason": trial.reason,
        "mqtune.attempts": len(trial.attempts),
        "mqtune.reports": trial.reports,
        "mqtune.parent": trial.parent or "",
        **{f"mqtune.config.{name}": value for name, value in plain_config(trial.config).items()},
    }
    times = trial.history[0].at, trial.history[-1].at
    status = _span_status(trial.status, trial.reason)
    return _make_span(experiment, f"trial {trial.id}", trial.id, _ROOT, times, attributes, status)


def _span_of_attempt(experiment: Experiment, trial: Trial, attempt: Attempt, key: str) -> ReadableSpan:
    end = attempt.end.value if attempt.end is not None else ""
    attributes: dict[str, str | float] = {
        "mqtune.experiment": experiment.name,
        "mqtune.trial": trial.id,
        "mqtune.attempt": attempt.number,
        "mqtune.end": end,
        "mqtune.reason": attempt.stop.reason if attempt.stop is not None else "",
        "mqtune.worker": attempt.worker,
        "mqtune.devices": ",".join(attempt.devices),
        "mqtune.queue": attempt.queue,
        "mqtune.queued_s": (attempt.started_at or attempt.ended_at or attempt.queued_at) - attempt.queued_at,
        "mqtune.checkpoint": attempt.checkpoint,
        "mqtune.reports": attempt.reports,
        "host.name": attempt.host,
        "process.pid": attempt.pid,
        "error.type": attempt.error_type,
    }
    began_at = attempt.started_at or attempt.queued_at
    times = began_at, attempt.ended_at or began_at
    status = _span_status(attempt.end, attempt.error)
    return _make_span(experiment, f"attempt {attempt.number}", key, trial.id, times, attributes, status)


def _span_status(end: AttemptEnd | TrialStatus | None, reason: str) -> Status:
    if end in _FAILED:
        return Status(StatusCode.ERROR, reason)
    return Status(StatusCode.OK if end in _COMPLETED else StatusCode.UNSET)


def _make_span(
    experiment: Experiment,
    name: str,
    key: str,
    parent: str | None,
    times: tuple[float, float],
    attributes: Mapping[str, str | float],
    status: Status | None = None,
) -> ReadableSpan:
    began_at, ended_at = times
    return ReadableSpan(
        name,
        context=_context(experiment, key),
        parent=None if parent is None else _context(experiment, parent),
        resource=_resource(),
        attributes={name: value for name, value in attributes.items() if value != ""},
        status=status or Status(),
        start_time=int(began_at * _NS),
        end_time=int(ended_at * _NS),
    )


@functools.cache
def _resource() -> Resource:
    return Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "mqtune")})


def _context(experiment: Experiment, key: str) -> SpanContext:
    trace = f"{experiment.name} {experiment.created_at}"
    trace_id = int.from_bytes(hashlib.blake2b(trace.encode(), digest_size=16).digest())
    span_id = int.from_bytes(hashlib.blake2b(f"{trace} {key}".encode(), digest_size=8).digest())
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
