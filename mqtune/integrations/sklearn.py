"""Reports from scikit-learn estimators inside a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from mqtune.extend import ConfigurationError, importing
from mqtune.integrations.in_trials import CallbackReports, fetched_checkpoint

with importing("scikit-learn", "sklearn"):
    from sklearn.base import BaseEstimator
    from sklearn.metrics import check_scoring

_FILE: Final = "rounds"


class Storage(Protocol):
    """Reads and writes estimators, as the module ``joblib`` does."""

    def dump(self, value: tuple[BaseEstimator, int], filename: str) -> object:
        """Write a value to a file."""

    def load(self, filename: str) -> tuple[BaseEstimator, int]:
        """Read a value from a file."""


class Rounds:
    """Fits an estimator in rounds, and reports its scores after each.

    A trial with a checkpoint continues with the next round, and with the given estimator's parameters.

    Args:
        validation: features and targets for scoring.
        scoring: as in ``cross_validate``. If it is a name, the metric has that name, and else ``score``. Several scores
            keep their names.
        checkpoint_every: save a checkpoint with every n-th report; 0 saves only on request.
        storage: ``joblib``, which unpickles and so trusts the store, or any object with its ``dump`` and ``load``.
            Without it nothing is saved.

    Raises:
        ConfigurationError: *storage* is missing, but checkpoints are wanted or the trial starts from one.
    """

    def __init__(
        self,
        validation: tuple[object, object],
        *,
        scoring: object = None,
        checkpoint_every: int = 0,
        storage: Storage | None = None,
    ) -> None:
        self._folder = fetched_checkpoint()
        if storage is None and (checkpoint_every or self._folder):
            raise ConfigurationError("a checkpoint of an estimator needs storage=, such as storage=joblib")
        self._validation = validation
        self._scoring = scoring
        self._storage = storage
        self._reports = CallbackReports(None, checkpoint_every)

    def partial_fit(
        self, estimator: BaseEstimator, features: object, targets: object, *, rounds: int, **parameters: object
    ) -> BaseEstimator:
        """Call ``estimator.partial_fit`` with all data in each round. Return the fitted estimator.

        A trial with a checkpoint continues with the checkpoint's estimator, and returns that.
        """

        def fit(fitted: BaseEstimator, _: int) -> None:
            fitted.partial_fit(features, targets, **parameters)

        return self._fit(estimator, rounds, fit)

    def warm_start(
        self, estimator: BaseEstimator, features: object, targets: object, steps: Sequence[Mapping[str, object]]
    ) -> BaseEstimator:
        """Call ``estimator.fit`` with a warm start for each of *steps*. Return the estimator.

        Args:
            estimator: an estimator with the parameter ``warm_start``.
            features: the training data.
            targets: its targets.
            steps: the parameters to set before each fit, such as ``[{"n_estimators": 10}, {"n_estimators": 20}]``.
        """
        estimator.set_params(warm_start=True)

        def fit(fitted: BaseEstimator, number: int) -> None:
            fitted.set_params(**steps[number]).fit(features, targets)

        return self._fit(estimator, len(steps), fit)

    def _fit(self, estimator: BaseEstimator, rounds: int, fit: Callable[[BaseEstimator, int], None]) -> BaseEstimator:
        fitted, done = self._restored(estimator)
        scorer = check_scoring(fitted, scoring=self._scoring)
        for number in range(done, rounds):
            fit(fitted, number)
            self._report(fitted, scorer(fitted, *self._validation), number + 1)
        return fitted

    def _restored(self, estimator: BaseEstimator) -> tuple[BaseEstimator, int]:
        if self._folder is None or self._storage is None:
            return estimator, 0
        fitted, done = self._storage.load(str(self._folder / _FILE))
        parameters = estimator.get_params().items()
        # Nested estimators were fitted with the rest.
        return fitted.set_params(
            **{name: value for name, value in parameters if not hasattr(value, "get_params")}
        ), done

    def _report(self, fitted: BaseEstimator, scores: object, done: int) -> None:
        if not isinstance(scores, Mapping):
            scores = {self._scoring if isinstance(self._scoring, str) else "score": scores}
        storage = self._storage

        def save(folder: Path) -> None:
            if storage is not None:
                storage.dump((fitted, done), str(folder / _FILE))

        self._reports.make(scores, None if storage is None else save)
