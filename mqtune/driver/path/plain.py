"""The fast path of reports: folds many entries in one call.

``Intake.judge`` processes reports one by one instead if a part needs each of them: in lockstep, for ``next_report``,
and for a callback with ``on_report``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from mqtune.core.events import START, sound_segments
from mqtune.core.experiment import Experiment
from mqtune.core.trial import REPORT_DEFAULTS, Report
from mqtune.driver.rules.deciders import GO_ON, Deciders, Verdict
from mqtune.journal.base import Entry

#: Number of entries between two calls of *look*. Processing that many entries of the largest size takes a second.
_LOOK_EVERY: Final = 64


class PlainReports:
    """Folds whole entries of reports, many in one call, and tracks the driver's place.

    A round of the loop costs more time than a report. Here an entry costs little more than its decoding.

    Args:
        experiment: the fold, which gets each report.
        deciders: judge each report that counts.
        listeners: observers of each report. While there are any, no entry is folded here.
        look: called every 64 entries, for example to renew the lock during a long replay.
        act: called before the next report if a report has a checkpoint, or a verdict other than to continue. It gets
            the report and its verdict, which is None if the report doesn't count.
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
        #: The current entry's id, and the number of its folded reports.
        self.place: tuple[str, int] = START
        self._experiment = experiment
        self._deciders = deciders
        self._listeners = listeners
        self._look = look
        self._act = act

    def take(
        self, entries: Iterator[tuple[int, Entry]], awaited: Collection[str], *, may_fold: bool = True
    ) -> Entry | None:
        """Fold entries of reports up to the first other entry, and return that one.

        Return None at the end. Other entries are events, entries with malformed reports, and those in *awaited*. If
        *may_fold* is false, or there are listeners, return the next entry of any kind. After an error the place is
        before the failed report, so the next driver begins with it.
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
                if listeners or not may_fold:
                    return entry
                id_, data = entry
                if id_ in awaited or (segments := sound_segments(data)) is None:
                    return entry
                for trial_id, attempt, first, reports in segments:
                    for sequence, values in enumerate(reports, first):
                        # Same as Report(…), in half the time.
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
