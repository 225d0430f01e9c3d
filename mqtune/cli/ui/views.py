"""The data of the live page, as plain values without markup. Texts may come from user code."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict
from itertools import islice
from typing import Final, NamedTuple

from mqtune.checkpoints import open_store, store_beside
from mqtune.checkpoints.directory import DirectoryStore
from mqtune.checkpoints.registry import local_path
from mqtune.checkpoints.store import split_name
from mqtune.cli.code import find_files
from mqtune.cli.describe import described_trial
from mqtune.cli.fleet import (
    Run,
    described_worker,
    impairment_text,
    open_fleet,
    queues_of,
    runs_of,
    with_use,
)
from mqtune.cli.machine_use import sharing_of, short_use_text, usage_of, usage_text, use_text, uses_of, warning_of
from mqtune.cli.place import live_broker
from mqtune.cli.steer import ACTIONS
from mqtune.cli.terms import OWN_COLUMNS
from mqtune.cli.ui.facts import about, time_of_best
from mqtune.cli.ui.feed import Feed, Feeds
from mqtune.cli.ui.places import Places
from mqtune.cli.ui.trials import BOOKKEEPING, MOST_ROWS, chosen, rows_for
from mqtune.cli.why import Inquiry
from mqtune.core.errors import ConfigurationError, MqtuneError, NothingToDraw
from mqtune.core.text import counted, flatten, printable
from mqtune.core.trial import Attempt, CheckpointId, Trial, TrialId, TrialStatus, is_in_memory, is_number
from mqtune.core.usage import LiveUse
from mqtune.core.worker_info import WorkerInfo, busy_as
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
from mqtune.services.shares.overview import ShareSummary, shares_on
from mqtune.trainable.bundle import is_digest

#: The most changed trials in one message.
_MOST_CHANGED: Final = 200
#: Names of metrics are looked for in this many of the newest trials.
_SEARCHED_TRIALS: Final = 50
_MOST_PANELS: Final = 12
#: The most bytes of a file that are shown.
_MOST_SOURCE: Final = 256 * 1024
_NO_SHARES: Final = (
    "this account may not read the demands of experiments: create it again with mqtune fleet acl monitor"
)
TRIAL: Final = "trial"
#: The kind of the data with the ranges of the best trials, which has no panels.
_RANGES: Final = "ranges"
#: The kinds of pictures that compare trials at a common time of the scheduler.
_COMPARING: Final = frozenset({"slices", "importances", "parallel", _RANGES})
#: The name of the level of each trial's best value.
_BEST: Final = "best"
#: Causes that are no fault: the experiment's own trials keep the slots busy, or a trial is about to begin.
_FINE: Final = frozenset({"running", "driver", "starting", "retry"})


def summary(feed: Feed) -> Row:
    """Return an experiment's summary. The cost does not depend on the number of trials."""
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
        "best": None if best is None else {**_best(best), "time": time_of_best(feed)},
        "front": len(experiment.pareto_front),
        "tags": experiment.labels.tags,
        "notes": experiment.labels.notes,
    }


def _best(trial: Trial) -> Row:
    config = [(name, short_value(value)) for name, value in islice(flatten(trial.config), 20)]
    return {"trial": trial.id, "value": short_value(trial.best_value), "config": config}


def changed(feed: Feed, after: str) -> tuple[str, Row]:
    """Return the last folded entry's id, with the summary and the rows changed after *after*."""
    with feed.lock:
        changes = feed.changes(after)
        rows = rows_for(feed, changes.trials[:_MOST_CHANGED])
        return changes.entry, {"summary": summary(feed), "rows": rows}


class Asked(NamedTuple):
    """A user's choices for a picture. Empty values stand for the defaults.

    Attributes:
        metric: the metric, by default the experiment's.
        x: the horizontal axis.
        where: the filter of trials.
        of: the ids of the trials to draw, by default all.
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
    """Return a picture for Plotly, or the reason why it is empty, and the user's choices for it.

    Raises:
        click.UsageError: the filter is not a condition.
        ConfigurationError: the picture or the trial does not exist.
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
    scales = [{**asdict(scale), "key": _condition_name(scale.name)} for scale in drawn.scales]
    return {
        "note": drawn.note,
        "remarks": list(drawn.remarks),
        "height": drawn.height,
        "panels": panels_of(drawn),
        "scales": scales,
        "levels": None if drawn.levels is None else _described_levels(drawn.levels),
        "shares": [asdict(share) for share in drawn.shares],
    }


def _described_levels(levels: Levels) -> Row:
    every = [{"at": _level_name(level), "trials": level.count} for level in levels.every]
    return {"unit": levels.unit, "every": every, "shown": _level_name(levels.shown), "trials": levels.shown.count}


def _level_name(level: Level) -> str:
    return _BEST if level.time == BEST else f"{level.time:g}"


def _level(text: str) -> float | None:
    """Return the time of a level, given its name. Return None for an empty name, the default."""
    if text == _BEST:
        return BEST
    try:
        return float(text)
    except ValueError:
        return None


def _condition_name(name: str) -> str:
    """Return a parameter's name in conditions. It differs if a column of trials has that name."""
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
    """Return results with only the trials that the user has chosen."""
    if not asked.where and not asked.of:
        return results
    kept = {trial.id for trial in chosen(results.experiment, asked.where)}
    if asked.of:
        kept &= set(map(TrialId, asked.of))
    some = copy(results)
    some.experiment = copy(results.experiment)
    # The order of creation is kept.
    some.experiment.trials = {id_: trial for id_, trial in results.experiment.trials.items() if id_ in kept}
    return some


def _choices(feed: Feed, kind: str, trial: str) -> Row:
    """Return the metrics and horizontal axes that a user can choose for a picture, with labels."""
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
            for newest in islice(reversed(feed.experiment.trials.values()), _SEARCHED_TRIALS):
                last |= {name: value for name, value in flatten(newest.last_metrics) if is_number(value)}
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
    """Return names of metrics in order: optimised ones, then others, and mqtune's own last."""
    names = set(named)
    others = sorted(names - set(objective), key=lambda name: (name in BOOKKEEPING, name))
    return [*(name for name in objective if name in names), *others]


def compared(feeds: Feeds, names: Sequence[str], kind: str) -> Row:
    """Return a picture of several experiments for Plotly, or the reason why it is empty.

    Raises:
        ConfigurationError: the picture does not exist.
        as ``Feeds.get``.
    """
    chosen_feeds = {name: feeds.get(name) for name in names[:MOST_COMPARED]}
    by_name = {feed.experiment.name: feed for feed in chosen_feeds.values()}
    results = {name: feed.unlocked(lambda results: results) for name, feed in chosen_feeds.items()}
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
    rows = []
    for name in names[:MOST_COMPARED]:
        feed = feeds.get(name)
        with feed.lock:
            ran_s = updated_at(feed.experiment) - (feed.experiment.created_at or 0.0)
            rows.append({**summary(feed), "ran_s": ran_s})
    return {"experiments": rows}


def _trial_picture(feed: Feed, trial: Trial, asked: Asked) -> Picture:
    """Return a panel for each metric of a trial, or for the chosen metric alone."""
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
    """Return a panel with a trial's curve of a metric, and the best trial's if given."""
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
    indexes = spread(len(curve.value), most)
    return [curve.time[index] for index in indexes], [curve.value[index] for index in indexes]


def trial_page(feed: Feed, name: str) -> Row:
    """Return all data of a trial's page, with its config beside the best trial's.

    Raises:
        ConfigurationError: the trial does not exist.
    """
    with feed.lock:
        trial, experiment = _trial(feed, name), feed.experiment
        best = experiment.best
        compared = None if best is None or best is trial else best.config
        checkpoints = [
            {"id": saved.id, "at": saved.at, "metrics": _short_texts(saved.metrics)}
            for saved in trial.checkpoints.values()
        ]
        return {
            **described_trial(trial),
            "experiment": experiment.name,
            "verbs": [verb for verb, words in ACTIONS.items() if trial.status in words.statuses],
            "best_trial": None if best is None else best.id,
            "config": _beside(trial.config, compared),
            "metrics": _short_texts(trial.best_metrics),
            "last_metrics": _texts(trial.last_metrics),
            "checkpoints": checkpoints,
            "ran_with": [_ran_with(attempt) for attempt in trial.attempts if attempt.environment],
            "history": [
                {"status": step.status.value, "at": step.at, "reason": step.reason, "by": step.by}
                for step in trial.history
            ],
        }


def usage(feed: Feed, name: str) -> Row:
    """Return in words how each attempt of a trial uses or used its machine, if that is known.

    Raises:
        ConfigurationError: the trial does not exist.
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
    environment = attempt.environment
    packages, differs = environment.get("packages"), environment.get("differs")
    return {
        "attempt": attempt.number,
        **{key: _text(environment.get(key, "")) for key in ("python", "mqtune", "platform", "code", "bundle")},
        "packages": _texts(packages) if isinstance(packages, dict) else [],
        "differs": _text(", ".join(map(str, differs)) if isinstance(differs, list) else ""),
    }


def code(feed: Feed, name: str, attempt: int, file: str = "") -> Row:
    """Return the names of the files of an attempt's code, or the text of one of them.

    If the driver sent no bundle, only the fingerprints of files in the definition are known.

    Raises:
        ConfigurationError: the trial, attempt, file or bundle does not exist.
        AccessDenied: the account may not read code.
    """
    with feed.lock:
        trial = _trial(feed, name)
        digest = str(attempt_of(trial.attempts, trial.id, attempt).environment.get("bundle"))
    if not is_digest(digest):
        fingerprints = feed.results.definition.get("code_files") or {}
        lines = {path: f"fingerprint {_text(fingerprint)}" for path, fingerprint in fingerprints.items()}
        return {"bundle": "", **_listed(lines)}
    files = find_files(feed.place, digest)
    if not file:
        sizes = {path: f"{len(bundled.content):,} bytes" for path, bundled in files.items()}
        return {"bundle": digest, **_listed(sizes)}
    if file not in files:
        raise ConfigurationError(f"bundle {digest[:12]} has no file {file!r}")
    return {"file": file, "text": _source(files[file].content)}


def checkpoint(feed: Feed, name: str, id_: str) -> Row:
    """Return the names and sizes of the files of a trial's checkpoint.

    Only stores on this machine are read, as the journal may name any server.

    Raises:
        ConfigurationError: the trial or checkpoint does not exist, is a dict, or is in a store elsewhere.
        MqtuneError: the checkpoint can't be read.
    """
    with feed.lock:
        trial, url = _trial(feed, name), str(feed.results.definition.get("store") or "")
        if id_ not in trial.checkpoints:
            raise ConfigurationError(f"trial {trial.id} has no checkpoint {id_!r}")
    saved = CheckpointId(id_)
    if is_in_memory(saved):
        raise ConfigurationError(f"checkpoint {id_} is a dict in Redis, so it has no files")
    is_here = url and local_path(split_name(url)[0]) is not None
    store = open_store(store_beside(url, feed.place.folder or feed.results.folder)) if is_here else None
    if not isinstance(store, DirectoryStore):
        raise ConfigurationError(f"the files of checkpoint {id_} are not on this machine")
    sizes = store.sizes(saved)
    listed = _listed({printable(path): f"{size:,} bytes" for path, size in sizes.items()})
    return {**listed, "size": f"{sum(sizes.values()):,} bytes"}


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
    """Return the name, the short text and the full text of each value."""
    return [(name, short_value(value), _text(value)) for name, value in flatten(values)]


def _text(value: object) -> str:
    text = repr(value) if isinstance(value, float) else str(value)
    return text if len(text) <= 1_000 else f"{text[:999]}…"  # noqa: PLR2004 - more than anybody reads


def _trial(feed: Feed, name: str) -> Trial:
    trial = feed.experiment.trials.get(TrialId(name))
    if trial is None:
        raise ConfigurationError(f"experiment {feed.experiment.name!r} has no trial {name!r}")
    return trial


def why(places: Places, feeds: Feeds, feed: Feed, name: str = "") -> Row:
    """Return why the trial *name* waits or, if it is empty, why the experiment does not run.

    The text is empty if nothing waits, or if that is normal: for instance, the experiment's own trials use all slots.
    ``is_wrong`` says whether somebody may have to do something.

    Raises:
        ConfigurationError: the trial does not exist.
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
        # The server does not answer or is not known. The journal's age says that there is no driver.
        if trial is not None or not feed.state.startswith("driver away"):
            return nothing
        text = f"{feed.place.name} has no driver, so nothing new starts"
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
    """Return the numbers of workers, slots, busy slots and impaired workers."""
    workers: list[WorkerInfo] = []
    for url in places.servers():
        # The fleet's page shows the error.
        with contextlib.suppress(MqtuneError), open_fleet(url) as fleet:
            workers += fleet.workers()
    return {
        "workers": len(workers),
        "busy": sum(info.busy_slots for info in workers),
        "slots": sum(info.slots for info in workers),
        "impaired": sum(bool(info.impairments) for info in workers),
    }


def fleet_page(places: Places, feeds: Feeds) -> Row:
    """Return workers, queues, shares, quotas, running trials, and why experiments wait."""
    workers, queues, shares, quotas, problems = [], [], [], [], []
    names = {busy_as(name): name for name in (str(row["name"]) for row in places.listed().rows)}
    for url in places.servers():
        try:
            with open_fleet(url) as fleet:
                infos = fleet.workers()
                workers += [
                    {**described_worker(info), "impaired": "; ".join(map(impairment_text, info.impairments))}
                    for info in infos
                ]
                queues += [queue._asdict() for queue in queues_of(fleet, infos)]
            # An experiment's own server has neither shares nor quotas.
            if url != places.broker:
                continue
            of_all = shares_on(url, infos)
            shares += [_share(share, names) for share in of_all.shares or ()]
            quotas += [{**quota._asdict(), "pattern": _text(quota.pattern)} for quota in of_all.quotas or ()]
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
    """Return a share as a row with its experiment's name, which is empty if *names* lacks it."""
    row = share._asdict()
    name = names.get(row.pop("token"), "")
    return {**row, "experiment": name, "quotas": _text(", ".join(share.quotas))}


def _runs(places: Places, feeds: Feeds) -> list[Run]:
    runs = []
    for feed in _live(places, feeds):
        with feed.lock:
            runs += sorted(runs_of(feed.experiment))
    return runs


def _runs_with_use(places: Places, feeds: Feeds) -> list[Run]:
    by_broker: defaultdict[str | None, list[Run]] = defaultdict(list)
    for feed in _live(places, feeds):
        with feed.lock:
            by_broker[live_broker(feed.place)] += sorted(runs_of(feed.experiment))
    return [run for url, runs in by_broker.items() for run in with_use(url, runs)]


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
                # The list does not read long journals, so it does not know that one is broken.
                continue
            yield feed
