"""Results of experiments, from their journals: tables, pictures, and replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.results.best_curve import BestCurve as BestCurve
    from mqtune.results.callbacks import CallbackDispatcher as CallbackDispatcher, ErrorLog as ErrorLog
    from mqtune.results.checkpoints import checkpoint_of as checkpoint_of
    from mqtune.results.display import (
        ProgressConsole as ProgressConsole,
        ProgressDisplay as ProgressDisplay,
        UnblockedStream as UnblockedStream,
        ranked as ranked,
    )
    from mqtune.results.experiments import (
        Readable as Readable,
        RecordedReport as RecordedReport,
        Snapshot as Snapshot,
        empty_experiment as empty_experiment,
        saved_events as saved_events,
    )
    from mqtune.results.followed import (
        Fold as Fold,
        FolderSource as FolderSource,
        Followed as Followed,
        Replaced as Replaced,
    )
    from mqtune.results.follower import Follower as Follower, follow as follow
    from mqtune.results.kept_state import STATE_FILE as STATE_FILE, Worth as Worth, fold_copy as fold_copy
    from mqtune.results.plots.compared import Compared as Compared
    from mqtune.results.plots.data import (
        MOST_POINTS as MOST_POINTS,
        ParameterAxis as ParameterAxis,
        PlottedCurve as PlottedCurve,
    )
    from mqtune.results.plots.fanova import importances as importances
    from mqtune.results.plots.panels import PALETTE as PALETTE
    from mqtune.results.plots.plots import KINDS as KINDS, Plots as Plots
    from mqtune.results.plots.timeline import TimelineBar as TimelineBar, slots as slots
    from mqtune.results.progress import deciders_of as deciders_of
    from mqtune.results.results import csv_text as csv_text, json_text as json_text
    from mqtune.results.warm_start import MAX_LEARNT_BYTES as MAX_LEARNT_BYTES
    from mqtune.results.whatif import Replay

__all__ = ["Replay"]

#: The names that unit tests may use, by module.
_NAMES = {
    "best_curve": ("BestCurve",),
    "callbacks": ("CallbackDispatcher", "ErrorLog"),
    "checkpoints": ("checkpoint_of",),
    "display": (
        "ProgressConsole",
        "ProgressDisplay",
        "UnblockedStream",
        "ranked",
    ),
    "experiments": ("Readable", "RecordedReport", "Snapshot", "empty_experiment", "saved_events"),
    "follower": ("Follower", "follow"),
    "followed": ("Fold", "FolderSource", "Followed", "Replaced"),
    "kept_state": ("STATE_FILE", "Worth", "fold_copy"),
    "plots.compared": ("Compared",),
    "plots.data": ("ParameterAxis", "PlottedCurve", "MOST_POINTS"),
    "plots.fanova": ("importances",),
    "plots.panels": ("PALETTE",),
    "plots.plots": ("KINDS", "Plots"),
    "plots.timeline": ("TimelineBar", "slots"),
    "progress": ("deciders_of",),
    "results": ("csv_text", "json_text"),
    "warm_start": ("MAX_LEARNT_BYTES",),
    "whatif": ("Replay",),
}
__getattr__ = facade_of(__name__, _NAMES, is_public=True)
