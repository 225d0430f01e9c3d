"""The page's data: plain values that a trial may have chosen, never markup."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from itertools import islice
from typing import Final, NamedTuple

from mqtune.cli.code import find_files
from mqtune.cli.describe import described_trial
from mqtune.cli.fleet import (
    Run,
    described_worker,
    impairment_text,
    open_fleet,
    queues_of,
    runs_of,
    shares_on,
    with_use,
)
from mqtune.cli.machine_use import sharing_of, short_use_text, usage_of, usage_text, use_text, uses_of, warning_of
from mqtune.cli.place import live_broker
from mqtune.cli.steer import ACTIONS
from mqtune.cli.terms import OWN_COLUMNS
from mqtune.cli.ui.facts import about, best_time
from mqtune.cli.ui.feed import Feed, Feeds
from mqtune.cli.ui.places import Places
from mqtune.cli.ui.trials import BOOKKEEPING, MOST_ROWS, chosen, rows_for
from mqtune.cli.why import Inquiry
from mqtune.core.errors import ConfigurationError, MqtuneError, NothingToDraw
from mqtune.core.events import WorkerInfo, busy_as
from mqtune.core.text import counted, flatten, printable
from mqtune.core.trial import Attempt, Trial, TrialId, TrialStatus, is_number
from mqtune.core.usage import LiveUse
from mqtune.results.display import short_value
from mqtune.results.experiments import with_waiting
from mqtune.results.frames import Row
from mqtune.results.logs import attempt_of
from mqtune.results.plots.by_plotly import panels_of
from mqtune.results.plots.compared import MOST_COMPARED, Compared
from mqtune.results.plots.data import MOST_POINTS, PlottedCurve, is_wide_series, spread, time_attr_of, time_label_of
from mqtune.results.plots.levels import BEST
from mqtune.results.plots.panels import COMPLETED, TEXT, Axis, Level, Levels, Look, Panel, Series, label
from mqtune.results.plots.picture import Picture
from mqtune.results.plots.plots import KINDS, Plots
from mqtune.results.progress import updated_at
from mqtune.results.results import Results
from mqtune.services.shares.overview import ShareSummary, busy_slots
from mqtune.trainable.bundle import is_digest

#: Changed trials in one message.
_MOST_CHANGED: Final = 200
#: The newest trials, searched for names of metrics.
_LOOKED_AT: Final = 50
_MOST_PANELS: Final = 12
#: Bytes of a shown file.
_MOST_SOURCE: Final = 256 * 1024
_NO_SHARES: Final = (
    "this account may not read what experiments want of the fleet: make it again with mqtune fleet acl monitor"
)
TRIAL: Final = "trial"
#: Parameters with the ranges of the best trials, which is no picture of the library.
_RANGES: Final = "ranges"
#: Pictures of trials at a common time.
_COMPARING: Final = frozenset({"slices", "importances", "parallel", _RANGES})
#: The level of each trial's best value.
_BEST: Final = "best"
#: Reasons that are no fault: the experiment's own trials keep the slots busy, or something is about to begin.
_FINE: Final = frozenset({"running", "driver", "starting", "retry"})


def summary(feed: Feed) -> Row:
    """Return an experiment's summary. Its cost does not depend on the number of trials."""
    experiment, best = feed.experiment, feed.experiment.best
    counts = experiment.statuses
    return {
        **about(feed),
        "name": experiment.name,
        "state": with_waiting(feed.state, counts),
        "outcome": experiment.outcome,
        "problem": feed.problem,
        "reason": experiment.reason,
        "metrics": experiment.objective.metrics,
        "created_at": experiment.created_at,
        "owner": str(experiment.owner),
        "trials": len(experiment.trials),
        "counts": counts,
        "ended": sum(count for status, count in experiment.counts.items() if status.is_terminal),
        "planned": feed.limits.get("max_trials"),
        "reports": experiment.reports,
        "unreadable": experiment.unreadable,
        "best": None if best is None else {**_best(best), "time": best_time(feed)},
        "front": len(experiment.pareto_front),
        "tags": experiment.labels.tags,
        "notes": experiment.labels.notes,
    }


def _best(trial: Trial) -> Row:
    config = [(name, short_value(value)) for name, value in islice(flatten(trial.config), 20)]
    return {"trial": trial.id, "value": short_value(trial.best_value), "config": config}


def changed(feed: Feed, after: str) -> tuple[str, Row]:
    """Return the changes after a journal entry, and the last included entry."""
    with feed.lock:
        changes = feed.changes(after)
        rows = rows_for(feed, changes.trials[:_MOST_CHANGED])
        return changes.entry, {"summary": summary(feed), "rows": rows}


class Asked(NamedTuple):
    """A reader's choices for a picture.

    Attributes:
        metric: the metric; empty for the experiment's own.
        x: the horizontal axis.
        where: the filter of trials.
        of: the ids of the only trials.
        at: the scheduler's time at which trials are compared, or "best".
        order: the parameters that come first.
    """

    metric: str = ""
    x: str = ""
    where: str = ""
    of: tuple[str, ...] = ()
    at: str = ""
    order: tuple[str, ...] = ()


def picture(feed: Feed, kind: str, asked: Asked, *, trial: str = "") -> Row:
    """Return a picture for Plotly, or why it is empty, and the choices for it.

    Raises:
        click.UsageError: the filter is not a condition.
        ConfigurationError: the picture, the trial, or a name in the condition is missing.
    """
    if kind not in (TRIAL, _RANGES, *KINDS):
        raise ConfigurationError(f"there is no picture {kind!r}")
    try:
        drawn = _trial_picture(feed, _trial(feed, trial), asked) if kind == TRIAL else _drawn(feed, kind, asked)
    except (NothingToDraw, ConfigurationError) as error:
        return {"nothing": str(error), "choices": _choices(feed, kind, trial)}
    return {**as_figures(drawn), "choices": _choices(feed, kind, trial)}


def as_figures(drawn: Picture) -> Row:
    """Return a picture's panels for Plotly, with its note, scales, levels and shares."""
    scales = [{**asdict(each), "key": _condition_name(each.name)} for each in drawn.scales]
    return {
        "note": drawn.note,
        "remarks": list(drawn.remarks),
        "height": drawn.height,
        "panels": panels_of(drawn),
        "scales": scales,
        "levels": None if drawn.levels is None else _described_levels(drawn.levels),
        "shares": [asdict(each) for each in drawn.shares],
    }


def _described_levels(levels: Levels) -> Row:
    every = [{"at": _level_name(each), "trials": each.count} for each in levels.every]
    return {"unit": levels.unit, "every": every, "shown": _level_name(levels.shown), "trials": levels.shown.count}


def _level_name(level: Level) -> str:
    return _BEST if level.time == BEST else f"{level.time:g}"


def _level(text: str) -> float | None:
    """Return the time of a level's name; None for the default."""
    if text == _BEST:
        return BEST
    try:
        return float(text)
    except ValueError:
        return None


def _condition_name(name: str) -> str:
    """Return a parameter's or metric's name in conditions, where an own column may hide it."""
    return f"config.{name}" if name in OWN_COLUMNS else name


def _drawn(feed: Feed, kind: str, asked: Asked) -> Picture:
    choices = {"history": {"by": asked.x}, "curves": {"metric": asked.metric, "by": asked.x}}
    given: dict[str, object] = {name: value for name, value in choices.get(kind, {}).items() if value}
    if kind in ("curves", "parallel") and asked.of:
        given["apart"] = True
    if asked.metric and kind in _COMPARING - {"parallel"}:
        given["metric"] = asked.metric
    if kind in _COMPARING:
        given["at"] = _level(asked.at)
    if kind == "parallel":
        given["order"] = asked.order

    def made(results: Results) -> Picture:
        plots = Plots(_some_of(results, asked), feed.curves)
        if kind == _RANGES:
            return plots.ranges(asked.metric or None, _level(asked.at))
        return plots.draw(kind, **given)

    return feed.unlocked(made)


def _some_of(results: Results, asked: Asked) -> Results:
    """Return results with only the selected trials."""
    if not asked.where and not asked.of:
        return results
    kept = {trial.id for trial in chosen(results.experiment, asked.where)}
    if asked.of:
        kept &= set(map(TrialId, asked.of))
    some = copy(results)
    some.experiment = copy(results.experiment)
    # In the order of creation.
    some.experiment.trials = {id_: trial for id_, trial in results.experiment.trials.items() if id_ in kept}
    return some


def _choices(feed: Feed, kind: str, trial: str) -> Row:
    """Return the metrics and axes to choose for a picture, with labels."""
    objective, time_attr = feed.experiment.objective, time_attr_of(feed.results)
    if kind == TRIAL:
        names = [
            ["", "all metrics"],
            *([name, label(name)] for name in _metrics_of(feed.detail(TrialId(trial)), objective.metrics)),
        ]
        return {"metrics": names, "x": {"": time_label_of(feed.results), "time": "time"}}
    if kind == "history":
        return {"x": {"": "time", "trial": "trial"}}
    if kind == "curves":
        last: dict[str, object] = {}
        with feed.lock:
            for each in islice(reversed(feed.experiment.trials.values()), _LOOKED_AT):
                last |= {name: value for name, value in flatten(each.last_metrics) if is_number(value)}
        others = [name for name in _metrics_of(last, objective.metrics) if name != time_attr]
        first = objective.metrics[0] if objective.is_single else "all metrics"
        rest = others[1:] if objective.is_single else others
        return {
            "metrics": [["", label(first)], *([name, label(name)] for name in rest)],
            "x": {"": time_label_of(feed.results), "time": "time"},
        }
    if kind in ("slices", "importances", _RANGES) and not objective.is_single:
        first, *rest = objective.metrics
        return {"metrics": [["", label(first)], *([name, label(name)] for name in rest)]}
    return {}


def _metrics_of(named: Iterable[str], objective: Sequence[str]) -> list[str]:
    """Return the experiment's metrics, then others, and mqtune's own last."""
    there = set(named)
    others = sorted(there - set(objective), key=lambda name: (name in BOOKKEEPING, name))
    return [*(name for name in objective if name in there), *others]


def compared(feeds: Feeds, names: Sequence[str], kind: str) -> Row:
    """Return a picture of several experiments for Plotly, or the reason for its absence.

    Raises:
        as ``Feeds.get``; and ConfigurationError if the picture is missing.
    """
    found = {name: feeds.get(name) for name in names[:MOST_COMPARED]}
    by_name = {feed.experiment.name: feed for feed in found.values()}
    results = {name: feed.unlocked(lambda results: results) for name, feed in found.items()}
    try:
        drawn = Compared(results, lambda read, metric: by_name[read.experiment.name].curves(read, metric)).draw(kind)
    except NothingToDraw as error:
        return {"nothing": str(error)}
    return as_figures(drawn)


def summaries(feeds: Feeds, names: Sequence[str]) -> Row:
    """Return summaries of several experiments.

    Raises:
        as ``Feeds.get``.
    """
    found = []
    for name in names[:MOST_COMPARED]:
        feed = feeds.get(name)
        with feed.lock:
            ran_s = updated_at(feed.experiment) - (feed.experiment.created_at or 0.0)
            found.append({**summary(feed), "ran_s": ran_s})
    return {"experiments": found}


def _trial_picture(feed: Feed, trial: Trial, asked: Asked) -> Picture:
    """Return a panel for each metric of a trial, or for the selected one."""
    curves = feed.detail(trial.id)
    every = _metrics_of(curves, feed.experiment.objective.metrics)
    names = [asked.metric] if asked.metric in curves else [name for name in every if name not in BOOKKEEPING] or every
    if not names:
        raise NothingToDraw(f"trial {trial.id} has reported no number yet")
    shown = names[:_MOST_PANELS]
    by_time = asked.x == "time"
    x = "seconds since the first report" if by_time else time_label_of(feed.results)
    drawn = {name: curves[name].by_seconds() if by_time else curves[name] for name in shown}
    best = feed.experiment.best
    others = {} if best is None or best is trial else feed.curves_of_best()
    theirs = {name: curve.by_seconds() if by_time else curve for name, curve in others.items()}
    panels = [
        _metric_panel(x, name, curve, theirs.get(name), MOST_POINTS // len(shown)) for name, curve in drawn.items()
    ]
    note = counted(trial.reports, "report") + (
        f" · {len(shown)} of {len(every)} metrics" if len(shown) < len(every) else ""
    )
    return Picture(f"trial {trial.id}", note, panels)


def _metric_panel(x_label: str, name: str, curve: PlottedCurve, best: PlottedCurve | None, most: int) -> Panel:
    """Return a metric of a trial, beside the best trial's if that is known."""
    series = []
    if best is not None:
        x, y = _thinned(best, most)
        series.append(Series("best trial", x, y, Look(TEXT, width=1.5)))
    x, y = _thinned(curve, most)
    is_short = len(x) < 30  # noqa: PLR2004 - points that can be told apart
    series.append(Series("this trial", x, y, Look(COMPLETED, width=1.7, marker="circle" if is_short else "", size=5)))
    is_log = is_wide_series(series)
    return Panel(Axis(x_label), Axis("", is_log), series, label(name), key=name)


def _thinned(curve: PlottedCurve, most: int) -> tuple[list[float], list[float]]:
    places = spread(len(curve.value), most)
    return [curve.time[place] for place in places], [curve.value[place] for place in places]


def trial_page(feed: Feed, name: str) -> Row:
    """Return all facts about a trial, with its config beside the best one's.

    Raises:
        ConfigurationError: the trial is missing.
    """
    with feed.lock:
        trial, experiment = _trial(feed, name), feed.experiment
        best = experiment.best
        compared = None if best is None or best is trial else best.config
        checkpoints = [
            {"id": each.id, "at": each.at, "metrics": _short_texts(each.metrics)} for each in trial.checkpoints.values()
        ]
        return {
            **described_trial(trial),
            "experiment": experiment.name,
            "verbs": [verb for verb, what in ACTIONS.items() if trial.status in what.statuses],
            "best_trial": None if best is None else best.id,
            "config": _beside(trial.config, compared),
            "metrics": _short_texts(trial.best_metrics),
            "last_metrics": _texts(trial.last_metrics),
            "checkpoints": checkpoints,
            "ran_with": [_ran_with(attempt) for attempt in trial.attempts if attempt.environment],
            "history": [
                {"status": each.status.value, "at": each.at, "reason": each.reason, "by": each.by}
                for each in trial.history
            ],
        }


def usage(feed: Feed, name: str) -> Row:
    """Return each attempt's use of its machine as text, if known.

    Raises:
        ConfigurationError: the trial is missing.
    """
    with feed.lock:
        trial = _trial(feed, name)
    use = uses_of(feed.place, [trial]).get(trial.id)
    rows = [_usage_row(attempt, use if attempt is trial.attempts[-1] else None) for attempt in list(trial.attempts)]
    return {"attempts": [row for row in rows if row["usage"] or row["now"]]}


def _usage_row(attempt: Attempt, use: LiveUse | None) -> Row:
    return {
        "attempt": attempt.number,
        "usage": usage_text(usage_of(attempt, use)),
        "now": use_text(use) if use is not None else "",
        "sharing": sharing_of(attempt, use),
        "warning": warning_of(attempt, use),
    }


def _ran_with(attempt: Attempt) -> Row:
    found = attempt.environment
    packages, differs = found.get("packages"), found.get("differs")
    return {
        "attempt": attempt.number,
        **{key: _text(found.get(key, "")) for key in ("python", "mqtune", "platform", "code", "bundle")},
        "packages": _texts(packages) if isinstance(packages, dict) else [],
        "differs": _text(", ".join(map(str, differs)) if isinstance(differs, list) else ""),
    }


def code(feed: Feed, name: str, attempt: int, file: str = "") -> Row:
    """Return the files of an attempt's code, or one of them as text.

    Without a driver's bundle, these are the fingerprints in the definition.

    Raises:
        ConfigurationError: the trial, attempt, file or bundle is missing.
        AccessDenied: the account may not read code.
    """
    with feed.lock:
        trial = _trial(feed, name)
        digest = str(attempt_of(trial.attempts, trial.id, attempt).environment.get("bundle"))
    if not is_digest(digest):
        kept = feed.results.definition.get("code_files") or {}
        return {"bundle": "", **_listed({path: f"fingerprint {_text(each)}" for path, each in kept.items()})}
    files = find_files(feed.place, digest)
    if not file:
        return {"bundle": digest, **_listed({path: f"{len(each.content):,} bytes" for path, each in files.items()})}
    if file not in files:
        raise ConfigurationError(f"bundle {digest[:12]} has no file {file!r}")
    return {"file": file, "text": _source(files[file].content)}


def _listed(files: Mapping[str, str]) -> Row:
    return {"files": sorted(files.items())[:MOST_ROWS], "total": len(files)}


def _source(content: bytes) -> str:
    if b"\0" in content:
        return f"{len(content):,} bytes that are not text"
    more = f"\n… and {len(content) - _MOST_SOURCE:,} bytes more" if len(content) > _MOST_SOURCE else ""
    return printable(content[:_MOST_SOURCE].decode(errors="replace")) + more


def _beside(config: Mapping[str, object], best: Mapping[str, object] | None) -> list[Row]:
    mine, theirs = dict(flatten(config)), dict(flatten(best or {}))
    names = dict.fromkeys([*mine, *theirs])
    return [
        {
            "name": name,
            "value": _text(mine[name]) if name in mine else "",
            "best": None if best is None else _text(theirs[name]) if name in theirs else "",
            "differs": best is not None and mine.get(name) != theirs.get(name),
        }
        for name in names
    ]


def _texts(values: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(name, _text(value)) for name, value in flatten(values)]


def _short_texts(values: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """Return values' names, short forms and full forms."""
    return [(name, short_value(value), _text(value)) for name, value in flatten(values)]


def _text(value: object) -> str:
    text = repr(value) if isinstance(value, float) else str(value)
    return text if len(text) <= 1_000 else f"{text[:999]}…"  # noqa: PLR2004 - more than anybody reads


def _trial(feed: Feed, name: str) -> Trial:
    found = feed.experiment.trials.get(TrialId(name))
    if found is None:
        raise ConfigurationError(f"experiment {feed.experiment.name!r} has no trial {name!r}")
    return found


def why(places: Places, feeds: Feeds, feed: Feed, name: str = "") -> Row:
    """Return why a trial waits or, without one, why an experiment does not run.

    It is empty if nothing is wrong, as when an experiment's own trials keep the slots busy. ``is_wrong`` says whether somebody may have to act.

    Raises:
        ConfigurationError: the trial is missing.
    """
    nothing: Row = {"text": "", "way_out": "", "is_wrong": False}
    with feed.lock:
        trial = _trial(feed, name) if name else None
        if trial.status.is_terminal if trial is not None else not _waits(feed):
            return nothing
        runs = feed.experiment.running > 0
        definition = feed.results.definition
        inquiry = Inquiry(feed.place, feed.experiment, definition, trial, lambda _: _runs(places, feeds))
    try:
        reason = inquiry.reason()
    except MqtuneError:
        # The server is away or unknown. The journal's age says that nobody drives.
        if trial is not None or not feed.state.startswith("driver away"):
            return nothing
        text = f"nobody drives {feed.place.name}, so nothing new starts"
        return {"text": text, "way_out": f"continue it: mqtune drive {feed.place.name}", "is_wrong": True}
    is_fine = reason.cause in _FINE or (reason.cause == "busy" and runs)
    if (trial is None and is_fine) or (trial is not None and reason.cause == "running"):
        return nothing
    is_wrong = not (is_fine or reason.cause == "paused" or (reason.cause == "ended" and feed.state != "failed"))
    return {"text": reason.text, "way_out": reason.way_out, "is_wrong": is_wrong}


def _waits(feed: Feed) -> bool:
    experiment = feed.experiment
    is_idle = not experiment.running and experiment.outcome != "finished"
    is_away = feed.state.startswith("driver away")
    return is_idle or is_away or (not experiment.outcome and experiment.counts[TrialStatus.QUEUED] > 0)


def fleet_line(places: Places) -> Row:
    """Return how many workers there are, and how many of their slots are busy."""
    found: list[WorkerInfo] = []
    for url in places.servers():
        # The page of the fleet has the error.
        with contextlib.suppress(MqtuneError), open_fleet(url) as fleet:
            found += fleet.workers()
    return {
        "workers": len(found),
        "busy": sum(map(busy_slots, found)),
        "slots": sum(info.slots for info in found),
        "impaired": sum(bool(info.impairments) for info in found),
    }


def fleet_page(places: Places, feeds: Feeds) -> Row:
    """Return workers, queues, shares, quotas, running trials, and reasons for waiting."""
    workers, queues, shares, quotas, problems = [], [], [], [], []
    names = {busy_as(name): name for name in (str(each["name"]) for each in places.listed().rows)}
    for url in places.servers():
        try:
            with open_fleet(url) as fleet:
                found = fleet.workers()
                workers += [
                    {**described_worker(info), "impaired": "; ".join(map(impairment_text, info.impairments))}
                    for info in found
                ]
                queues += [queue._asdict() for queue in queues_of(fleet, found)]
            # An experiment's own server has neither shares nor quotas.
            if url != places.broker:
                continue
            of_all = shares_on(url, found)
            shares += [_share(each, names) for each in of_all.shares or ()]
            quotas += [{**each._asdict(), "pattern": _text(each.pattern)} for each in of_all.quotas or ()]
            if of_all.shares is None:
                problems.append(_NO_SHARES)
        except MqtuneError as error:
            problems.append(str(error))
    return {
        "workers": workers,
        "queues": queues,
        "shares": shares,
        "quotas": quotas,
        "problems": problems,
        "runs": [{**run.described(), "use_text": short_use_text(run.use)} for run in _runs_with_use(places, feeds)],
        "waiting": list(_waiting(places, feeds)),
        "now": time.time(),
    }


def _share(share: ShareSummary, names: Mapping[str, str]) -> Row:
    """Return a share. Experiments that are not shown have no name."""
    found = share._asdict()
    name = names.get(found.pop("token"), "")
    return {**found, "experiment": name, "quotas": _text(", ".join(share.quotas))}


def _runs(places: Places, feeds: Feeds) -> list[Run]:
    found = []
    for feed in _live(places, feeds):
        with feed.lock:
            found += sorted(runs_of(feed.experiment))
    return found


def _runs_with_use(places: Places, feeds: Feeds) -> list[Run]:
    found: defaultdict[str | None, list[Run]] = defaultdict(list)
    for feed in _live(places, feeds):
        with feed.lock:
            found[live_broker(feed.place)] += sorted(runs_of(feed.experiment))
    return [run for url, runs in found.items() for run in with_use(url, runs)]


def _waiting(places: Places, feeds: Feeds) -> Iterator[Row]:
    for feed in _live(places, feeds):
        if waiting := feed.experiment.counts[TrialStatus.QUEUED]:
            yield {"experiment": feed.place.name, "waiting": waiting, **why(places, feeds, feed)}


def _live(places: Places, feeds: Feeds) -> Iterator[Feed]:
    for listed in places.listed().rows:
        if not listed.get("outcome") and "error" not in listed:
            try:
                feed = feeds.get(str(listed["name"]))
            except MqtuneError:
                # The list does not read long journals, and so misses broken ones.
                continue
            yield feed
