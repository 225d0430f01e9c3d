"""Requests from the live page's buttons to an experiment's driver."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from mqtune.cli.label import label_chosen
from mqtune.cli.place import Place, find_trial, steered
from mqtune.cli.steer import ACTIONS, Outcome, ask, experiment_of, in_words, steer_trial, with_limits
from mqtune.cli.ui.places import Places
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import names_in_words
from mqtune.core.trial import Trial, TrialId
from mqtune.results.frames import Row

if TYPE_CHECKING:
    from mqtune.client import ExperimentHandle

#: Seconds to wait for an answer. The request stays valid in any case.
_ANSWER_S: Final = 15.0
_REASON: Final = "by hand, on the live page"
_SHOWN: Final = 5
_MOST_TRIALS: Final = 10**9


def steer(places: Places, wanted: Row) -> Row:
    """Carry out the request of a button, and return the outcome in words.

    Args:
        places: the shown experiments.
        wanted: the request: ``name`` of the experiment, ``verb``, ``trial`` or ``trials`` (a list of ids), and the
            arguments of the verb.

    Raises:
        ConfigurationError: the experiment, trial or verb does not exist, or a limit, tag or note is invalid.
        MqtuneError: the account may not do it, or the broker does not answer.
    """
    name, verb, trial = (str(wanted.get(key) or "") for key in ("name", "verb", "trial"))
    if verb == "label":
        return _label(places.find(name), trial, wanted)
    with steered(places.find(name)) as handle:
        if verb in ACTIONS and "trials" in wanted:
            return _steer_many(handle, verb, ids_of(wanted))
        if verb in ACTIONS:
            experiment = experiment_of(handle)
            outcome = _steered(handle, verb, experiment.trials[find_trial(experiment, trial)], _ANSWER_S)
        elif verb == "end":
            outcome = ask("end", "", partial(handle.end, now=wanted.get("now") is True, wait_s=_ANSWER_S))
        elif verb == "set":
            most, at_once = (_limit(wanted, key) for key in ("max_trials", "max_concurrent"))
            request = partial(handle.set, max_trials=most, max_concurrent=at_once, wait_s=_ANSWER_S)
            outcome = with_limits(ask("set", "", request), {"max_trials": most, "max_concurrent": at_once})
        else:
            raise ConfigurationError(
                f"{verb!r} is not an action; actions are {names_in_words([*ACTIONS, 'end', 'label', 'set'])}"
            )
    return _answer(outcome, name)


def ids_of(wanted: Row) -> list[str]:
    """Return the ids of trials in a request."""
    ids = wanted.get("trials")
    return list(map(str, ids)) if isinstance(ids, list) else []


def _label(place: Place, trial: str, wanted: Row) -> Row:
    given = {key: value for key in ("tags", "untag", "notes") if (value := wanted.get(key)) not in (None, [])}
    (outcome,) = label_chosen(place, [trial] if trial else [], given, _ANSWER_S)
    return _answer(outcome, place.name)


def _steer_many(handle: ExperimentHandle, verb: str, ids: list[str]) -> Row:
    experiment = experiment_of(handle)
    trials = [experiment.trials[TrialId(id_)] for id_ in ids if id_ in experiment.trials]
    # All answers together are awaited as long as one. Later requests are made without waiting for their answers.
    deadline = time.monotonic() + _ANSWER_S
    outcomes = [_steered(handle, verb, trial, max(0.0, deadline - time.monotonic())) for trial in trials]
    undone = [outcome for outcome in outcomes if not outcome.done]
    shown = [in_words(outcome, handle.name) for outcome in undone[:_SHOWN]]
    more = [f"and {len(undone) - _SHOWN} more"] if len(undone) > _SHOWN else []
    text = "; ".join([f"{verb}: done for {len(outcomes) - len(undone)} of {len(outcomes)} trials", *shown, *more])
    return {"text": text, "done": not undone, "refused": any(outcome.refused for outcome in undone)}


def _steered(handle: ExperimentHandle, verb: str, trial: Trial, wait_s: float) -> Outcome:
    reason = {} if verb == "save" else {"reason": _REASON}
    return steer_trial(handle, verb, trial, {"wait_s": wait_s, **reason})


def _answer(outcome: Outcome, name: str) -> Row:
    return {"text": in_words(outcome, name), "done": outcome.done, "refused": outcome.refused}


def _limit(wanted: Row, key: str) -> int | None:
    value = wanted.get(key)
    if value is None or (type(value) is int and 0 < value < _MOST_TRIALS):
        return value
    raise ConfigurationError(f"{key}={value!r} is not a whole number of at least 1")
