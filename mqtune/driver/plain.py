"""Reports with which nobody but the deciders is concerned: nearly all of a long journal, and of a flood."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from mqtune.core.events import START, sound_segments
from mqtune.core.experiment import Experiment
from mqtune.core.trial import REPORT_DEFAULTS, Report
from mqtune.driver.deciders import GO_ON, Deciders, Verdict
from mqtune.journal.base import Entry

#: Entries between two looks at the lock: a second's work when each is as large as a worker makes them.
_LOOK_EVERY: Final = 64


class PlainReports:
    """Takes in whole entries of reports, many in one call, and holds where its driver stands.

    What the loop does for each entry takes longer than a report does. Here an entry costs little more than its
    decoding.

    Args:
        experiment: folds each report.
        deciders: are asked about each that counts.
        listeners: those who want to hear of each report; while there are any, no report is plain.
        look: called now and then, as a journal may be long, and what else there is to do in it slow.
        act: called where a report brings more than that its trial goes on, with the verdict if it counts, before the
            next one.
    """

    def __init__(
        self,
        experiment: Experiment,
        deciders: Deciders,
        listeners: Sequence[object],
        *,
        look: Callable[[], object],
        act: Callable[[Report, Verdict | None], object],
    ) -> None:
        #: The entry to which the driver has come, and how many of its reports it has taken in.
        self.place: tuple[str, int] = START
        self._experiment = experiment
        self._deciders = deciders
        self._listeners = listeners
        self._look = look
        self._act = act

    def take(
        self, entries: Iterator[tuple[int, Entry]], awaited: Collection[str], *, is_plain: bool = True
    ) -> Entry | None:
        """Take in numbered entries, up to the first that is to be taken in otherwise.

        Return that, or None at their end. Those are entries of another kind, of damaged reports, and *awaited* ones, in
        which there is more to do; all, unless this *is_plain*. An error leaves the driver before the report that it
        came of: the next one begins with that.
        """
        fold, decide, listeners = self._experiment.apply_report, self._deciders.on_report, self._listeners
        new, kind, (no_checkpoint,) = tuple.__new__, Report, REPORT_DEFAULTS
        (last, count), taken = self.place, 0
        id_ = last
        self._look()
        try:
            for number, entry in entries:
                if not number % _LOOK_EVERY:
                    self._look()
                if taken:
                    last, count = id_, taken
                taken = 0
                if listeners or not is_plain:
                    return entry
                id_, data = entry
                if id_ in awaited or (segments := sound_segments(data)) is None:
                    return entry
                for trial_id, attempt, first, reports in segments:
                    for sequence, values in enumerate(reports, first):
                        # What Report(…) does, in half its time.
                        if len(values) == 2:  # noqa: PLR2004 - all but the checkpoint
                            report = new(kind, (trial_id, attempt, sequence, values[0], values[1], no_checkpoint))
                        else:
                            report = new(kind, (trial_id, attempt, sequence, *values))
                        trial = fold(report)
                        verdict = None if trial is None else decide(trial, report)
                        taken += 1
                        if (verdict is GO_ON or verdict is None) and not report.checkpoint:
                            continue
                        self.place = id_, taken
                        self._act(report, verdict)
        finally:
            self.place = (id_, taken) if taken else (last, count)
        return None
