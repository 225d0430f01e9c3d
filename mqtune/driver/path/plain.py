"""The usual path of reports: it folds many entries in one call, and acts on each verdict.

``Intake.judge`` takes reports one by one where a part has to see each of them: in lockstep, for ``next_report``, and
while a callback has an ``on_report``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from mqtune.core.events import START, sound_segments
from mqtune.core.experiment import Experiment
from mqtune.core.trial import REPORT_DEFAULTS, Report
from mqtune.driver.rules.deciders import GO_ON, Deciders, Verdict
from mqtune.journal.base import Entry

#: Entries between two lock checks: a second's work at a worker's maximum entry size.
_LOOK_EVERY: Final = 64


class PlainReports:
    """Folds whole entries of reports, many in one call, and holds the driver's place.

    The driver's loop costs more for an entry than the report itself. Here an entry costs little more than its decoding.
    Nearly all reports have no consequence. For a stopping report or a checkpoint, *act* is called before the next one.

    Args:
        experiment: folds each report.
        deciders: decide on each report that counts.
        listeners: observers of each report. While there are any, no entry is folded here.
        look: called regularly, because a journal may be long.
        act: called before the next report if a report has a consequence, with its verdict if it counts.
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
        #: Current entry, and the number of its reports that are folded.
        self.place: tuple[str, int] = START
        self._experiment = experiment
        self._deciders = deciders
        self._listeners = listeners
        self._look = look
        self._act = act

    def take(
        self, entries: Iterator[tuple[int, Entry]], awaited: Collection[str], *, is_plain: bool = True
    ) -> Entry | None:
        """Fold numbered entries of plain reports. Return the first other entry, or None at the end.

        Other entries are events, batches with damaged reports, and *awaited* entries; every entry if *is_plain* is
        false. After an error the place is before the failed report, so the next driver begins with it.
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
