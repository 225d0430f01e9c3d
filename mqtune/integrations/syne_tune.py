"""Syne Tune's schedulers in a Tuner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from inspect import signature
from typing import Any, Final, NoReturn, cast

from mqtune import Space, TrialStatus
from mqtune.extend import (
    CONTINUE,
    ITERATION,
    CheckpointId,
    Choice,
    Config,
    ConfigurationError,
    Description,
    Domain,
    Kind,
    Mode,
    Objective,
    Ordinal,
    Parameter,
    Report,
    ReverseInterval,
    Suggestion,
    Trial,
    TrialId,
    fingerprint,
    importing,
    interval,
    is_number,
    parameter,
)
from mqtune.integrations.syne_tune_backend import (
    TIME_NAMES,
    MqtuneBackend as MqtuneBackend,  # noqa: PLC0414 - this module's too
    attributes_of,
)
from mqtune.integrations.syne_tune_model import SlowSearcher, is_quick, suggest_name
from mqtune.schedulers import Action, Decision, Fork, Release, Resume, Scheduler, Start, Wait
from mqtune.search import WAIT, Searcher

with importing("Syne Tune", "syne-tune"):
    from syne_tune import config_space as st
    from syne_tune.backend.trial_status import Trial as TheirTrial
    from syne_tune.optimizer.scheduler import SchedulerDecision, TrialScheduler

_Answer = Start | Resume | Fork | Release | Wait
#: The types of options that Syne Tune's models accept, if all options of a choice have the same type.
_PLAIN: Final = (str, int, float, bool)
#: How long a resumed driver asks the searcher again, in seconds. An earlier driver loses its lock after 20.
_REPLAY_S: Final = 10.0
#: The attributes of Syne Tune's schedulers with the time at which trials end.
_END_NAMES: Final = ("max_t", "max_resource_level")


def config_space(space: Space | dict[str, object]) -> dict[str, Any]:
    """Return a Tuner's space as the config space of a Syne Tune scheduler.

    Nested keys are joined by ``/``. Some domains change their form, which matters for ``points_to_evaluate``: multiples
    of q become numbers of steps; ordinals and mixed choices become positions from 0; a value of a normal distribution
    becomes the probability of smaller values. Constants are kept. ``sample_from`` is left out, as mqtune computes it.

    Raises:
        ConfigurationError: the space has conditions, a constraint, or a user-defined domain.
    """
    whole = space if isinstance(space, Space) else Space(space)
    described: dict[str, Any] = whole.describe()
    constants = {path: domain["constant"] for path, domain in described.items() if "constant" in domain}
    return constants | _domains(whole, _parameters(whole))


def _parameters(space: Space) -> dict[str, Parameter]:
    lacks = "conditions" if space.has_conditions else space.constraint and "a constraint"
    if lacks:
        raise ConfigurationError(
            f"SyneTuneScheduler: the space has {lacks}, which Syne Tune does not support; OptunaSearcher does"
        )
    return {path: _parameter(domain) for path, domain in space.domains.items()}


def _parameter(domain: Domain) -> Parameter:
    if isinstance(domain, ReverseInterval):
        return interval(domain)
    known = parameter("SyneTuneScheduler", "Syne Tune", domain)
    if (kind := _plain_type(domain)) is not None:
        return replace(known, to_value=kind, to_param=kind)
    return known


def _domains(space: Space, parameters: dict[str, Parameter]) -> dict[str, Any]:
    return {path: _their_domain(domain, parameters[path]) for path, domain in space.domains.items()}


def _their_domain(domain: Domain, known: Parameter) -> Any:
    if known.kind is Kind.INTERVAL:
        new = st.loguniform if known.log else st.uniform
        return (st.reverseloguniform if isinstance(domain, ReverseInterval) else new)(known.low, known.high)
    if known.kind is Kind.UNORDERED:
        if isinstance(domain, Choice) and _plain_type(domain):
            return st.choice(list(domain.options))
        return st.choice([*range(known.high + 1)])
    return (st.lograndint if known.log else st.randint)(known.low, known.high)


def _plain_type(domain: Domain) -> type | None:
    """Return the type of a choice's options if Syne Tune's models accept it, or None."""
    if not isinstance(domain, Choice) or isinstance(domain, Ordinal):
        return None
    kind = type(domain.options[0])
    return kind if kind in _PLAIN and all(type(option) is kind for option in domain.options) else None


@dataclass(slots=True)
class _Suggestion:
    """A suggestion of Syne Tune: a new trial, perhaps with another's checkpoint, or a resume."""

    number: int
    is_new: bool
    config: Config | None
    source: int | None = None


@dataclass(slots=True)
class _OpenTrial:
    """An unfinished trial, as Syne Tune knows it."""

    theirs: TheirTrial
    #: The time and the metrics of the last report that Syne Tune has got.
    time: float = -math.inf
    told: dict[str, Any] = field(default_factory=dict)
    #: Syne Tune's decision, which stays until the trial resumes.
    decision: Decision = CONTINUE
    #: The trial's checkpoint at the decision.
    checkpoint: CheckpointId | None = None
    is_paused: bool = False
    has_diverged: bool = False


class _NothingToStartError(Exception):
    """No new trial can start."""


class SyneTuneScheduler(Scheduler):
    """Uses a scheduler of Syne Tune to suggest configs and decide on trials.

    A Tuner with it has no other searcher. The scheduler gets the calls of Syne Tune's own Tuner, in the same order,
    except:

    - *Repeated reports*, after a loss or from an older checkpoint, are skipped.
    - *Reports without the metric* are skipped. NaN or infinity stops the trial, which counts as failed in Syne Tune,
      since its models can't use it.
    - *At the end of its time* (``max_t``) a trial is completed, not stopped.
    - *A paused trial* resumes from the checkpoint that it had at the decision. If a person resumes it, it runs without
      Syne Tune.
    - *A trial added by a person* counts like a trial that Syne Tune has suggested.
    - *The end*: when no new trial can start, only resumes and copies (PBT) are requested. When nothing runs and no
      suggestion comes, paused trials are stopped early.

    **Replay.** A resumed driver repeats the calls, and replaces suggestions by the journal's configs. A scheduler with
    ``random_seed`` then continues as without the interruption, though HyperTune and DyHPO may decide otherwise. Others
    keep all that they have learnt. Suggestions are repeated for 10 seconds in all. After that, a slow model learns from
    the journal alone.

    **Cost.** In real time the scheduler's searcher works in a thread, so only slots wait for a config. Random
    searchers, and those with other duties (HyperTune, DyHPO), work in the driver's loop.

    Works with Syne Tune 0.13 to 0.16. At the end, synchronous Hyperband counts empty places of a rung as failed trials.

    Args:
        scheduler: a new scheduler of Syne Tune, made with ``config_space(space)`` of the Tuner's space.

    Raises:
        ConfigurationError: *scheduler* is not a scheduler of Syne Tune.
    """

    kind = "syne_tune"
    takes_several = True

    def __init__(self, scheduler: TrialScheduler) -> None:
        if not isinstance(scheduler, TrialScheduler):
            raise ConfigurationError(f"SyneTuneScheduler: scheduler={scheduler!r:.80} is not a scheduler of Syne Tune")
        self._scheduler = scheduler
        self._takes_number = "trial_id" in signature(scheduler.suggest).parameters
        self._time = next(attributes_of(scheduler, *TIME_NAMES), "")
        self._end = next(attributes_of(scheduler, *_END_NAMES), math.inf)
        self.searcher = _Suggestions(self)
        self._progress: dict[TrialId, _OpenTrial] = {}
        #: Every trial by Syne Tune's number, from 0.
        self._trials: dict[int, Trial] = {}
        self._next = 0
        #: Suggestions whose attempts are not queued yet, oldest first.
        self._suggested: list[_Suggestion] = []
        #: Whether anything has happened since the last empty suggestion.
        self._is_news = True
        self._may_start = True
        #: The config that the searcher must suggest, and whether to ask it nevertheless, so that its state changes.
        self._given: dict[str, Any] | None = None
        self._asks_again = False
        self._replay_s = 0.0
        #: The scheduler's searcher, if it works in a thread.
        self._slow: SlowSearcher | None = None
        self._steer_searcher()

    def _steer_searcher(self) -> None:
        """Replace the searcher's suggesting method by a method that can return known configs."""
        for searcher in attributes_of(self._scheduler, "searcher"):
            name = suggest_name(searcher)
            self._own_suggest = getattr(searcher, name)
            setattr(searcher, name, self._steered_suggest(self._own_suggest))
            return

    def _steered_suggest(self, suggest: Callable[..., dict[str, Any] | None]) -> Callable[..., dict[str, Any] | None]:
        def steered(*arguments: Any, **options: Any) -> dict[str, Any] | None:
            if self._given is None and self._may_start and (self._slow is None or self._slow.has_answer):
                return (self._slow.answer if self._slow else suggest)(*arguments, **options)
            if self._given is None:
                if self._takes_number:
                    return None
                # Some schedulers since 0.14 don't accept None.
                raise _NothingToStartError
            if self._asks_again and self._replay_s < _REPLAY_S:
                begin = time.monotonic()
                suggest(*arguments, **options)
                self._replay_s += time.monotonic() - begin
            return dict(self._given)

        return steered

    def decide_in_background(self) -> None:
        """Run the scheduler's searcher in a thread, unless it is quick."""
        for searcher in attributes_of(self._scheduler, "searcher"):
            if not is_quick(searcher):
                self._slow = SlowSearcher(self._scheduler, searcher, self._own_suggest)
                self.background = self._slow.background
            return

    @property
    def time_attr(self) -> str:
        """The key of the scheduler's time, or empty."""
        return self._time

    def check_space(self, space: Space) -> None:
        """Check that the scheduler was made for this space."""
        self._space, self._parameters = space, _parameters(space)
        own = _domains(space, self._parameters)
        theirs = next(attributes_of(self._scheduler, "config_space"), own)
        chosen = {key: domain for key, domain in theirs.items() if isinstance(domain, st.Domain)}
        differing = sorted(key for key in own.keys() | chosen.keys() if own.get(key) != chosen.get(key))
        if differing:
            raise ConfigurationError(
                f"SyneTuneScheduler: {self._name} was made for another space than the Tuner's: {', '.join(differing)} "
                "differ; make it with mqtune.integrations.syne_tune.config_space(space)"
            )

    def bind(self, metric: str, mode: str) -> None:
        """Check that the scheduler optimises the experiment's metric and mode."""
        names, modes = (_as_list(ask()) for ask in (self._scheduler.metric_names, self._scheduler.metric_mode))
        known = dict(zip(names, modes * len(names) if len(modes) == 1 else modes, strict=True))
        wanted = self.objective or Objective.of(metric, cast("Mode", mode))
        if not dict(zip(wanted.metrics, wanted.modes, strict=True)).items() <= known.items():
            shown = " and ".join(f"metric={name!r}, mode={known_mode!r}" for name, known_mode in known.items())
            raise ConfigurationError(
                f"SyneTuneScheduler: {self._name} goes by {shown}, and the Tuner by metric={wanted.metric!r}, "
                f"mode={wanted.mode!r}; give both the same"
            )
        super().bind(metric, mode)
        self._metrics = names

    @property
    def _name(self) -> str:
        return type(self._scheduler).__name__

    def on_report(self, trial: Trial, report: Report) -> Decision:
        progress, metrics = self._progress[trial.id], report.metrics
        if progress.decision is not CONTINUE:
            return progress.decision
        values: list[Any] = [metrics.get(name) for name in self._metrics]
        reached: Any = metrics.get(self._time, report.sequence if self._time == ITERATION else None)
        if not all(map(is_number, values)) or (self._time and (reached is None or reached <= progress.time)):
            return CONTINUE
        # Without an end or pause, a report changes nothing while the searcher works. Asking copies the scheduler.
        self._is_news = self._is_news or not (self._slow and self._slow.is_computing)
        if not all(map(math.isfinite, values)):
            self._is_news = True
            progress.has_diverged = True
            progress.decision = Decision(Action.STOP, f"{self._metrics[0]} is no finite number")
            return progress.decision
        if self._time:
            progress.time = reached
        progress.told = {**metrics, **({self._time: reached} if self._time else {})}
        action = self._scheduler.on_trial_result(progress.theirs, dict(progress.told))
        if action != SchedulerDecision.CONTINUE:
            self._is_news = True
            self._scheduler.on_trial_remove(progress.theirs)
            progress.checkpoint = trial.checkpoint
            progress.decision = self._decision(action, trial, progress.time)
        return progress.decision

    def _decision(self, action: str, trial: Trial, reached: float) -> Decision:
        if reached >= self._end:
            return Decision(Action.COMPLETE, f"{self._time} has reached {self._end}")
        if action == SchedulerDecision.PAUSE:
            # It resumes from here, even if it saves again before it pauses.
            return Decision(Action.PAUSE, f"{self._name} pauses it", trial.id)
        return Decision(Action.STOP, f"{self._name} stops it")

    def on_trial_pause(self, trial: Trial) -> None:
        self._is_news = self._progress[trial.id].is_paused = True

    def on_trial_end(self, trial: Trial) -> None:
        """Report the end to Syne Tune, unless that has decided on it."""
        self._is_news = True
        progress = self._progress.pop(trial.id)
        self._suggested = [
            suggested
            for suggested in self._suggested
            if suggested.is_new or self._trials[suggested.number] is not trial
        ]
        if progress.has_diverged or trial.status in (TrialStatus.FAILED, TrialStatus.ABANDONED):
            self._scheduler.on_trial_error(progress.theirs)
        elif progress.decision is CONTINUE and trial.status is TrialStatus.COMPLETED and progress.told:
            self._scheduler.on_trial_complete(progress.theirs, progress.told)
        elif progress.decision is CONTINUE:
            self._scheduler.on_trial_error(progress.theirs)

    def choose(self, *, can_start: bool) -> _Answer:
        """Return the next action that Syne Tune suggests.

        It is returned again until its attempt is queued.
        """
        while True:
            self._suggested = [suggested for suggested in self._suggested if self._is_possible(suggested)]
            for suggestion in self._suggested:
                choice = self._action_for(suggestion, can_start=can_start)
                if choice is not None:
                    return choice
            if self._is_news or (can_start and not (self._slow and self._slow.is_computing)):
                self._is_news = False
                if self._ask_scheduler(may_start=can_start):
                    continue
            return Start() if can_start else self._release_or_wait()

    def _is_possible(self, suggestion: _Suggestion) -> bool:
        """Return whether a suggestion can be carried out: a copy's source has or may get a checkpoint.

        PBT since 0.14 also copies failed trials.
        """
        source = None if suggestion.source is None else self._trials[suggestion.source]
        return source is None or bool(source.checkpoint) or not source.status.is_terminal

    def _action_for(self, suggestion: _Suggestion, *, can_start: bool) -> _Answer | None:
        config = suggestion.config
        if not suggestion.is_new:
            trial = self._trials[suggestion.number].id
            progress = self._progress[trial]
            if not progress.is_paused:
                return Wait(f"trial {trial} resumes as soon as it is paused")
            return Resume(trial, f"{self._name} resumes it", config, checkpoint=progress.checkpoint or CheckpointId(""))
        if suggestion.source is not None and config is not None:
            source = self._trials[suggestion.source].id
            return Fork(source, config, f"{self._name} copies trial {source}")
        return Start() if can_start else None

    def _release_or_wait(self) -> _Answer:
        """Release a paused trial if only paused trials are left. Otherwise wait."""
        paused = [
            id_ for id_, progress in self._progress.items() if progress.is_paused and progress.decision is not CONTINUE
        ]
        if paused and all(progress.is_paused for progress in self._progress.values()):
            return Release(paused[0], f"{self._name} does not resume it, and no other trial is under way")
        return Wait(f"no new trial can start, and {self._name} resumes none")

    def suggest(self) -> Suggestion:
        """Return the config of a new trial. Return WAIT while it is computed, and None after the last."""
        if self._slow is None and not any(map(_is_plain_start, self._suggested)):
            self._ask_scheduler(may_start=True)
        later = WAIT if self._slow and self._slow.is_asked else None
        return next((suggested.config for suggested in self._suggested if _is_plain_start(suggested)), later)

    def _ask_scheduler(
        self, *, may_start: bool = True, given: Config | None = None, asks_again: bool = False
    ) -> _Suggestion | None:
        """Ask Syne Tune for one suggestion, keep it, and return it.

        Args:
            may_start: whether a new trial may be suggested.
            given: the config that must be suggested; None for any.
            asks_again: whether to ask the searcher, too, though the config is given.
        """
        numbers = [self._next] if self._takes_number else []
        if may_start and given is None and self._waits_for_searcher(numbers):
            return None
        self._may_start, self._asks_again = may_start, asks_again
        self._given = None if given is None else {key: self._flat(given)[key] for key in self._parameters}
        try:
            answer = self._scheduler.suggest(*numbers)
        except _NothingToStartError:
            answer = None
        finally:
            self._given = None
        if answer is None:
            return None
        config = None if answer.config is None else self._config(answer.config)
        if answer.spawn_new_trial_id:
            suggestion = _Suggestion(self._next, True, config, answer.checkpoint_trial_id)
            self._next += 1
        elif self._trials[answer.checkpoint_trial_id].id in self._progress:
            suggestion = _Suggestion(answer.checkpoint_trial_id, False, config)
        else:
            # The trial to resume has ended meanwhile, so ask for another suggestion.
            self._scheduler.on_trial_error(TheirTrial(answer.checkpoint_trial_id, {}, datetime.now(UTC)))
            return self._ask_scheduler(may_start=may_start, given=given, asks_again=asks_again)
        self._suggested.append(suggestion)
        return suggestion

    def _waits_for_searcher(self, numbers: list[int]) -> bool:
        """Return whether a suggestion must wait for the searcher's thread.

        The first suggestion initialises the searcher, and never waits.
        """
        if self._slow is None or self._next == 0:
            return False
        is_ready = self._slow.is_ready(*numbers)
        if is_ready is None:
            self._slow = None
        return is_ready is False

    def _flat(self, config: Config) -> dict[str, Any]:
        """Return a config in Syne Tune's form, by path."""
        values = self._space.values(config)
        return values | {path: parameter.to_param(values[path]) for path, parameter in self._parameters.items()}

    def _config(self, flat: dict[str, Any]) -> Config:
        return self._space.config_of(
            {path: parameter.to_value(flat[path]) for path, parameter in self._parameters.items()}
        )

    def queued(self, trial: Trial, *, was_suggested: bool) -> None:
        """Record a queued attempt.

        *was_suggested* says whether an earlier driver got its config from Syne Tune.
        """
        progress = self._progress.get(trial.id)
        if progress is None:
            self._add_trial(trial, was_suggested=was_suggested)
        elif progress.is_paused:
            self._resume(trial, progress)

    def _add_trial(self, trial: Trial, *, was_suggested: bool) -> None:
        """Add a new trial to Syne Tune. If it is not a current suggestion, have it suggested first."""
        parent = trial.attempt.source
        source = next((number for number, known in self._trials.items() if known.id == parent), None)
        wanted = fingerprint(trial.config)
        suggestion = next(
            (
                suggested
                for suggested in self._suggested
                if suggested.is_new and fingerprint(suggested.config) == wanted
            ),
            None,
        )
        if suggestion is None:
            suggestion = self._ask_scheduler(given=trial.config, asks_again=was_suggested)
            while suggestion is not None and not (suggestion.is_new and suggestion.source in (None, source)):
                suggestion = self._ask_scheduler(given=trial.config, asks_again=was_suggested)
        if suggestion is not None:
            self._suggested.remove(suggestion)
        number = self._new_number() if suggestion is None else suggestion.number
        theirs = TheirTrial(number, self._flat(trial.config), datetime.fromtimestamp(trial.attempt.queued_at, UTC))
        self._trials[number] = trial
        self._progress[trial.id] = _OpenTrial(theirs)
        self._scheduler.on_trial_add(theirs)
        if self._slow and self._slow.is_worth_prefetching:
            self._waits_for_searcher([self._next] if self._takes_number else [])

    def _new_number(self) -> int:
        self._next += 1
        return self._next - 1

    def _resume(self, trial: Trial, progress: _OpenTrial) -> None:
        """Resume a paused trial in Syne Tune, if that has suggested it. A person may have resumed it."""
        progress.is_paused = False
        if progress.decision is CONTINUE:
            return
        progress.decision, number = CONTINUE, progress.theirs.trial_id
        while not any(not suggested.is_new and suggested.number == number for suggested in self._suggested):
            if self._ask_scheduler(may_start=False) is None:
                # Syne Tune gets none of its further reports.
                progress.time = math.inf
                return
        self._suggested = [suggested for suggested in self._suggested if suggested.is_new or suggested.number != number]
        progress.theirs.config = self._flat(trial.config)

    def describe(self) -> Description:
        """Return the scheduler's class. A definition can't have more of it."""
        return {self.role: self.kind, "of": self._name}

    @classmethod
    def from_arguments(cls, arguments: Description) -> NoReturn:
        """Refuse, as only the user's code can make a Syne Tune scheduler."""
        raise ConfigurationError(
            f"the scheduler was Syne Tune's {arguments['of']}, which only your code can make: "
            f"give scheduler=SyneTuneScheduler({arguments['of']}(…))"
        )


class _Suggestions(Searcher):
    """The searcher that goes with the scheduler."""

    takes_several = True
    adaptive = True

    def __init__(self, scheduler: SyneTuneScheduler) -> None:
        self._scheduler = scheduler
        self._was_suggested = False

    def suggest(self, trial: TrialId) -> Suggestion:
        return self._scheduler.suggest()

    def replay(self, trial: TrialId, config: Config) -> Config:
        """Return *config*. Syne Tune suggests it when its trial is queued."""
        self._was_suggested = True
        return config

    def avoid(self, config: Config) -> None:
        """Do nothing, as the config's trial is queued right after."""

    def on_queue(self, trial: Trial) -> None:
        was_suggested, self._was_suggested = self._was_suggested, False
        self._scheduler.queued(trial, was_suggested=was_suggested)

    def describe(self) -> Description:
        return {self.role: self._scheduler.kind}


def _is_plain_start(suggestion: _Suggestion) -> bool:
    return suggestion.is_new and suggestion.source is None


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
