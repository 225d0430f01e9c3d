"""OptunaHub's AutoSampler as a searcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mqtune.extend import ConfigurationError, Description
from mqtune.integrations.optuna import OptunaSearcher

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

_PACKAGE: Final = "samplers/auto_sampler"


class AutoSearcher(OptunaSearcher):
    """Proposes suggestions of OptunaHub's AutoSampler, which chooses among Optuna's samplers.

    OptunaHub downloads the sampler's code and keeps it on this machine. The driver runs it. Only your script may
    request that, not an experiment's definition: ``mqtune drive`` refuses, and ``Tuner.attach`` needs ``searcher=``. In
    all else it is an ``OptunaSearcher`` with a sampler of your own.

    Args:
        seed: None for the experiment's.

    Raises:
        ConfigurationError: OptunaHub, a library of AutoSampler, or its code is unavailable.
    """

    kind = "auto"

    def __init__(self, *, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self._make = _auto_sampler()

    def _begin_model(self, seed: int) -> None:
        self._sampler = self._make(seed=seed % 2**32)
        super()._begin_model(seed)

    def _model(self) -> Description:
        return {}

    @classmethod
    def from_arguments(cls, arguments: Description) -> AutoSearcher:
        """Return a searcher that the user's script has requested. Refuse one of a definition."""
        if arguments:
            raise ConfigurationError(
                "AutoSampler is code that OptunaHub downloads, and only your script may request that: give "
                "searcher='auto'"
            )
        return cls()


def _auto_sampler() -> Callable[..., BaseSampler]:
    try:
        import optunahub  # noqa: PLC0415 - most machines lack it

        made: type[BaseSampler] = optunahub.load_module(_PACKAGE).AutoSampler
    except Exception as error:  # the network's, GitHub's, and import errors of the sampler
        raise ConfigurationError(
            f"searcher='auto' is OptunaHub's AutoSampler, which can't be loaded ({type(error).__name__}: {error}); "
            "pip install 'mqtune[auto]', let this machine reach OptunaHub, or give searcher='tpe'"
        ) from error
    return made
