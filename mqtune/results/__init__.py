"""Results of experiments, from their journals: tables, pictures, and replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.results.follower import Follower as Follower, follow as follow
    from mqtune.results.whatif import Replay as Replay

__all__ = ["Replay"]

#: The names that unit tests may use, by module.
_NAMES = {
    "best_curve": ("BestCurve",),
    "callbacks": ("CallbackDispatcher", "ErrorLog"),
    "checkpoints": ("checkpoint_of",),
    "display": ("ProgressConsole", "ProgressDisplay", "UnblockedStream", "ranked"),
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
