"""The methods of a tuner for scripts with a loop of their own."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mqtune.core.checks import given_of
from mqtune.core.experiment import Experiment
from mqtune.core.labels import checked_notes, checked_tags
from mqtune.core.resources import Resources
from mqtune.core.trial import Config, Report, Trial, TrialId, TrialStatus
from mqtune.driver.driver import Driver
from mqtune.driver.setup.settings import Settings
from mqtune.driver.trials import DrivenTrial, LocalSteering
from mqtune.driver.writing.actions import next_trial_id
from mqtune.driver.writing.orders import AnswerQuestion
from mqtune.results.checkpoints import Origin
from mqtune.results.results import Results


class UserLoop(ABC):
    """The methods of ``Tuner`` for a script that steers the trials itself."""

    _settings: Settings
    #: The reports since the last call of ``new_reports``. None before the first call.
    _collected: list[Report] | None
    #: The failed trials that ``next_failed_trial`` has returned.
    _returned_failures: set[TrialId]

    @abstractmethod
    def step(self) -> None:
        """Start trials in free slots, wait for new events, and process them."""

    @abstractmethod
    def results(self) -> Results:
        """Return the results so far."""

    @abstractmethod
    def _open(self) -> Driver:
        """Return the driver. The first call connects and creates or replays the experiment."""

    @abstractmethod
    def _driver_or_open(self) -> Driver:
        """Return the driver, even if this tuner is closed. The first call opens it."""

    @property
    @abstractmethod
    def _experiment(self) -> Experiment:
        """The experiment. The first access opens the driver, unless this tuner is closed."""

    def trial(self, trial: Trial | str) -> DrivenTrial:
        """Return a handle that steers a trial, and reads its output and checkpoints.

        Args:
            trial: the trial, or its id.

        Raises:
            ConfigurationError: there is no such trial.
        """
        handle = DrivenTrial(trial.id if isinstance(trial, Trial) else trial, self._open, self._driver_or_open)
        _ = handle.record
        return handle

    def add(
        self,
        config: Config,
        *,
        source: Trial | str = "",
        checkpoint: Origin | None = None,
        timeout_s: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
    ) -> Trial:
        """Stage a new trial now, even if no slot is free, and return it.

        Args:
            config: the config, or a part of it. Missing values are sampled.
            source: a trial from whose current checkpoint the new trial starts.
            checkpoint: the checkpoint to start from: "newest" of *source* (the default); "best" of *source* or, without
                *source*, of the best trial; the id of any kept checkpoint; or, without *source*, the path of a folder
                on this machine. The folder is copied into the experiment's store, and becomes the trial's first
                checkpoint. If the folder comes from another experiment's store, its iteration and time counters
                continue.
            timeout_s: longest time that an attempt may run, in seconds. By default ``Process(timeout_s=…)``.
            tags: names by which to find the trial, for example with ``Results.find``.
            notes: remarks on the trial.
            key: your own name for the trial. If the experiment has a trial with this key, even from an earlier driver,
                that trial is returned, and nothing starts.

        Raises:
            SpaceError: the config does not fit the space.
            ConfigurationError: there is no such checkpoint, tags or notes are invalid, or a folder was given and the
                experiment has no store.
            StoreUnavailable: the store can't be reached or written.
        """
        driver = self._open()
        if (known := self.find(key)) is not None:
            return known
        new = next_trial_id(driver.experiment)
        from_trial = source.id if isinstance(source, Trial) else source
        arguments: dict[str, object] = {
            "config": self._settings.space.complete(
                config, random.Random(f"{driver.place.definition['seed']}:{int(new)}")
            ),
            "tags": checked_tags(tags),
            "notes": checked_notes(notes),
            **given_of(source=from_trial, checkpoint=checkpoint, timeout_s=timeout_s, key=key),
        }
        brought = LocalSteering(self._open).bring("add", new, arguments)
        return driver.requests.start(arguments, brought=brought)

    def ask(
        self,
        config: Config | None = None,
        *,
        timeout_s: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
    ) -> Trial:
        """Begin a trial that you evaluate yourself, and return it with its config.

        The arguments are those of ``ExperimentHandle.ask``. If the searcher needs time for the config, this calls
        ``step`` until the config is there.

        Raises:
            SpaceError: the config does not fit the space.
            ConfigurationError: the searcher has no other config, ``max_trials`` trials have begun, or the experiment
                ends.
        """
        given = given_of(config=config, timeout_s=timeout_s, notes=notes, key=key, tags=list(tags))
        return self._carry_out("ask", "", given)

    def tell(
        self,
        trial: Trial | str | Mapping[str, object],
        metrics: Mapping[str, object],
        *,
        ends: bool = True,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
    ) -> Trial:
        """Report a result that you measured yourself, and return its trial.

        The arguments are those of ``ExperimentHandle.tell``. If the returned trial is no longer RUNNING, send no
        further report of it.

        Raises:
            SpaceError: the config is outside the space.
            ConfigurationError: the trial is not from ``ask``, or a metric is missing.
            InvalidTransition: the trial has ended, or is paused.
        """
        config = None if isinstance(trial, Trial | str) else dict(trial)
        id_ = trial.id if isinstance(trial, Trial) else trial if isinstance(trial, str) else ""
        given = given_of(metrics=dict(metrics), ends=ends, config=config, notes=notes, key=key, tags=list(tags))
        return self._carry_out("tell", id_, given)

    def _carry_out(self, action: str, trial: str, arguments: dict[str, object]) -> Trial:
        driver = self._open()
        while (changed := driver.requests.take(action, trial, arguments)) is None:
            self.step()
        return changed

    def get_trials(self, *statuses: TrialStatus) -> list[Trial]:
        """Return the trials in the order of their ids.

        With *statuses*, return only trials with one of these. The returned trials are the driver's own objects: don't
        change them.
        """
        trials = list(self._experiment.trials.values())
        return [trial for trial in trials if trial.status in statuses] if statuses else trials

    def find(self, key: str) -> Trial | None:
        """Return the trial that was added with this key, or None."""
        experiment = self._experiment
        known = experiment.keys.get(key)
        return None if known is None else experiment.trials[known]

    @property
    def busy_trials(self) -> list[Trial]:
        """The trials with status QUEUED or RUNNING, except trials that are evaluated outside."""
        return [trial for trial in self.get_trials() if trial.is_busy]

    @property
    def running_trials(self) -> list[Trial]:
        """The trials with status RUNNING."""
        return self.get_trials(TrialStatus.RUNNING)

    def new_reports(self) -> list[Report]:
        """Return the reports since the last call, by time.

        The first call returns all reports so far. Reports that came after a decision on their trial are left out.
        ``Results`` has them, marked as late.
        """
        if self._collected is None:
            self._collected = []
            self.listen(self._collected.append)
        reports = sorted(self._collected, key=lambda report: report.timestamp)
        self._collected.clear()
        return reports

    def listen(self, listener: Callable[[Report], object]) -> None:
        """Call *listener* with each report so far, and later with each new one.

        Reports that came after a decision on their trial are left out. When a trial has ended, *listener* has got all
        its reports.
        """
        driver = self._driver_or_open()
        # The copy may lack the newest decisions. Therefore compare with the attempt's number of accepted reports.
        accepted = {(trial.id, a.number): a.reports for trial in self.get_trials() for a in trial.attempts}
        for report in self.results().reports():
            if report.sequence <= accepted[report.trial, report.attempt]:
                listener(Report(*report[:-1]))
        driver.listen_to_reports(lambda _, report: listener(report))

    def next_failed_trial(self) -> Trial | None:
        """Return a FAILED trial that this method has not returned before, or None."""
        for trial in self._driver_or_open().experiment.trials.values():
            if trial.status is TrialStatus.FAILED and trial.id not in self._returned_failures:
                self._returned_failures.add(trial.id)
                return trial
        return None

    def annotate(self, *, tags: Sequence[str] | None = None, notes: str | None = None) -> None:
        """Replace the experiment's tags or notes. None leaves them as they are.

        Raises:
            ConfigurationError: the tags or notes are invalid.
        """
        driver = self._open()
        driver.label(None, driver.experiment.labels.changed(tags, notes))

    def reports_ahead(self, count: int) -> list[Report]:
        """Return up to *count* of the reports that ``next_report`` will return next.

        Nothing is decided on them yet. This doesn't wait: it returns only reports that the driver has read already, so
        the list may be empty. If you decide on one of their trials, ``next_report`` skips that trial's reports.
        """
        return self._open().reports_ahead(count)

    def answer(self, report: Report, answer: object) -> None:
        """Answer the question that a trial has asked by ``mqtune.ask``.

        A repeated call changes nothing.

        Args:
            report: the report with the question, from ``next_report``.
            answer: plain values, of about 2 KB at most.

        Raises:
            ConfigurationError: the answer is too long.
            TypeError: the answer has values that can't be sent.
        """
        self._open().carry_out(AnswerQuestion(report, answer))

    # Where it runs.

    @property
    def entry_point(self) -> Path:
        """The file that holds the trainable, on this machine."""
        return self._settings.spec.locate(self._settings.code_root)

    @property
    def slots(self) -> int:
        """Number of slots that offer a trial's resources, free or busy."""
        return self._driver_or_open().look_at_fleet().slots

    @property
    def free_slots(self) -> int:
        """Number of free slots, as of some seconds ago.

        These are the slots that neither a trial of this experiment nor of another one occupies or waits for. If the
        resources depend on the config, trials of other experiments are not subtracted.
        """
        fleet, settings = self._driver_or_open().look_at_fleet(), self._settings
        return (
            fleet.free(settings.expected[0]) if settings.asks is None else max(0, fleet.slots - self._experiment.live)
        )

    def has_resources(self, resources: Resources) -> bool:
        """Whether a free slot offers these resources. Free slots are counted as in ``free_slots``."""
        return self._driver_or_open().look_at_fleet().free(resources) > 0

    def resource_string(self) -> str:
        """Return a text with the resources of all slots."""
        return self._driver_or_open().backend.resource_string()

    def has_gpus(self) -> bool | None:
        """Whether any slot has a GPU. None if there is no slot."""
        return self._driver_or_open().backend.has_gpus()
