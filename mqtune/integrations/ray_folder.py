"""Importer of Ray Tune's result folders. It needs no Ray."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from mqtune import TrialStatus
from mqtune.extend import Body, ConfigurationError, Foreign, ForeignTrial, Metrics

_RESULTS: Final = "result.json"
_PARAMS: Final = "params.json"
_ERROR: Final = "error.txt"
#: The keys in reports that are Ray's own, and not mqtune's too.
_RAYS_OWN: Final = frozenset(
    {
        *("timestamp", "checkpoint_dir_name", "done", "trial_id", "date", "pid", "hostname", "node_ip", "config"),
        *("time_since_restore", "iterations_since_restore", "should_checkpoint", "experiment_id", "experiment_tag"),
    }
)
_ENDED: Final = {"TERMINATED": TrialStatus.COMPLETED, "ERROR": TrialStatus.FAILED}


def recognizes(source: str) -> bool:
    """Return whether a folder has an experiment of Ray Tune."""
    path = Path(source)
    return path.is_dir() and (any(path.glob("experiment_state-*.json")) or any(path.glob(f"*/{_PARAMS}")))


def read(source: str, metric: str, mode: str, study: str) -> Foreign:  # noqa: ARG001 - importers are called alike
    """Return an experiment of Ray Tune. Unfinished trials count as stopped early.

    If *metric* is empty, the metric of Ray's Tuner is optimised. *study* is ignored.

    Raises:
        ConfigurationError: the metric or mode is unknown, or a file is unreadable.
    """
    path = Path(source)
    state = _read_state(path)
    metric = metric or str(state.get("runner_data", {}).get("_metric") or "")
    if not metric or not mode:
        raise ConfigurationError(
            f"{path} does not say what it optimises: give --metric NAME, and --mode min or --mode max"
        )
    statuses = dict(map(_status, state.get("trial_data", [])))
    trials = [_read_trial(folder.parent, statuses) for folder in sorted(path.glob(f"*/{_PARAMS}"))]
    return Foreign("ray", path.name, metric, mode, trials)


def _read_state(path: Path) -> Body:
    saved = sorted(path.glob("experiment_state-*.json"))
    return _read_json(saved[-1]) if saved else {}


def _read_json(path: Path) -> Body:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError, OSError) as error:
        raise ConfigurationError(f"{path} can't be read: {error}") from error


def _status(data: object) -> tuple[str, str]:
    with contextlib.suppress(ValueError, TypeError, LookupError):
        state = json.loads(data[0] if isinstance(data, list) else str(data))
        return str(state["trial_id"]), str(state["status"])
    return "", ""


def _read_trial(folder: Path, statuses: Mapping[str, str]) -> ForeignTrial:
    lines = [*_read_lines(folder / _RESULTS)]
    id_ = next((str(line["trial_id"]) for line in lines if "trial_id" in line), "")
    if not id_:
        # One id may be the beginning of another, as ids end with a number of any width.
        id_ = max((trial for trial in statuses if trial in folder.name), key=len, default="")
    status, reason = _end_of(folder, lines, statuses.get(id_, ""))
    host = str(lines[0].get("hostname", "")) if lines else ""
    reports = [(float(line.get("timestamp", 0)), _metrics(line)) for line in lines]
    began = reports[0][0] - float(lines[0].get("time_total_s", 0)) if reports else (folder / _PARAMS).stat().st_mtime
    return ForeignTrial(_read_json(folder / _PARAMS), reports, status, reason, began, host)


def _end_of(folder: Path, lines: list[Body], status: str) -> tuple[TrialStatus, str]:
    if (folder / _ERROR).is_file():
        errors = (folder / _ERROR).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return TrialStatus.FAILED, errors[-1] if errors else "an error"
    if lines and lines[-1].get("done"):
        return TrialStatus.COMPLETED, ""
    known = _ENDED.get(status)
    return (known, "") if known is not None else (TrialStatus.EARLY_STOPPED, "it had not ended")


def _read_lines(path: Path) -> Iterator[Body]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            # The last line may be truncated.
            with contextlib.suppress(ValueError):
                if isinstance(entry := json.loads(line), dict):
                    yield entry


def _metrics(line: Body) -> Metrics:
    return {name: value for name, value in line.items() if name not in _RAYS_OWN and value is not None}
