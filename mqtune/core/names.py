"""Hints for unknown arguments and attributes, including names from other libraries."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar, Final, ParamSpec, Self, TypeVar

from mqtune.core.calls import signature_of
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import names_in_words, say_in_one_line

P = ParamSpec("P")
T = TypeVar("T")

#: Names for outcome constraints in Optuna, Ax and others.
_CONSTRAINTS: Final = ("outcome_constraints", "constraints", "constraints_func", "metric_constraints")
#: Arguments of ``Tuner`` in Ray Tune, Optuna, Syne Tune and Ax.
_OF_OTHERS: Final[Mapping[str, Iterable[str]]] = {
    "max_trials=": ("num_samples", "n_trials", "num_trials", "total_trials", "max_num_trials_started", "n_iter"),
    "space, the second argument": ("param_space", "search_space", "config", "config_space", "params", "parameters"),
    "trainable, the first argument": ("objective", "func", "function", "entry_point", "run_or_experiment"),
    "searcher=": ("search_alg", "sampler", "search", "algorithm", "generation_strategy"),
    "scheduler=": ("pruner",),
    'metric=["loss", "latency <= 10"]': _CONSTRAINTS,
    "mode=": ("direction", "directions", "do_minimize"),
    "name=": ("study_name", "experiment_name", "tuner_name"),
    "backend=, or $MQTUNE_BROKER": ("storage", "broker", "address", "trial_backend"),
    "resources=mqtune.Resources(…)": ("resources_per_trial", "num_gpus", "num_cpus", "gpus", "cpus"),
    "run=mqtune.RunOptions(max_concurrent=…)": (
        "max_concurrent_trials",
        "n_jobs",
        "n_workers",
        "num_workers",
        "parallelism",
    ),
    "run=mqtune.RunOptions(progress=…)": ("verbose", "show_progress_bar", "progress_reporter"),
    "run=mqtune.RunOptions(callbacks=…)": ("loggers", "tuner_callbacks"),
    "stop=": ("stop_criterion", "stopping_criterion", "time_budget_s", "timeout"),
    "checkpoints=mqtune.Checkpoints(…)": ("checkpoint_config", "storage_path", "local_dir"),
    "failures=mqtune.Failures(…)": ("failure_config", "raise_on_failed_trial"),
    "metric=, mode=, max_trials=, searcher= and scheduler=": ("tune_config",),
    "name=, stop=, checkpoints=, failures= and run=": ("run_config",),
}
#: Attributes of the modules of Ray Tune and Optuna.
OF_MODULES: Final[Mapping[str, str]] = {
    "TuneConfig": "the arguments metric=, mode=, max_trials=, searcher= and scheduler= of mqtune.Tuner",
    "RunConfig": "the arguments name=, stop=, checkpoints=, failures= and run= of mqtune.Tuner",
    "CheckpointConfig": "mqtune.Checkpoints(…)",
    "FailureConfig": "mqtune.Failures(…)",
    "with_resources": "mqtune.Tuner(resources=mqtune.Resources(…))",
    "with_parameters": "data at the top level of the trainable's file, or constants in the space",
    "run": "mqtune.Tuner(…).run()",
    "create_study": "mqtune.Tuner(…)",
    "load_study": "mqtune.Results.load(name)",
    "TrialPruned": "mqtune.StopTrial, which report() raises by itself",
    **dict.fromkeys(("ASHAScheduler", "AsyncHyperBandScheduler", "SuccessiveHalvingPruner"), "mqtune.ASHA(max_t=…)"),
    **dict.fromkeys(("HyperBandScheduler", "HyperBandForBOHB", "HyperbandPruner"), "mqtune.HyperBand(max_t=…)"),
    **dict.fromkeys(("MedianStoppingRule", "MedianPruner", "PercentilePruner"), "mqtune.MedianStopping(…)"),
    "PopulationBasedTraining": "mqtune.PBT(…)",
}
#: Methods and attributes of tuners in Ray Tune and Optuna.
OF_TUNERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("fit", "optimize", "tune"), "tuner.run()"),
    "enqueue_trial": "tuner.add(config)",
    "get_results": "tuner.results()",
    **dict.fromkeys(("best_trial", "best_params", "best_value"), "tuner.run().best"),
}
#: Attributes of results in Ray Tune and Optuna.
OF_RESULTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("get_best_result", "get_best_trial", "best_trial"), "results.best"),
    **dict.fromkeys(("get_dataframe", "trials_dataframe"), "results.dataframe()"),
    **dict.fromkeys(("get_best_config", "best_config", "best_params"), "results.best.config"),
    "best_value": "results.best.value",
    "get_best_checkpoint": 'results.get_checkpoint(which="best")',
    "num_errors": "len(results.errors)",
}
#: Ray Tune's names of options, and options that belong to another group of settings.
OF_GROUPS: Final[Mapping[str, str]] = {
    "num_to_keep": "keep_last=",
    "checkpoint_score_attribute": "score=",
    "checkpoint_score_order": "mode=",
    "storage_path": "store, the first argument of Checkpoints",
    "name": "Tuner(name=…)",
    "stop": "Tuner(stop=…)",
}
#: The experiment's arguments, and other libraries' arguments of schedulers and stop rules.
OF_DECIDERS: Final[Mapping[str, str]] = {
    "metric": "Tuner(metric=…)",
    "mode": "Tuner(mode=…)",
    "max_resource": "max_t=",
    "min_resource": "grace_period=",
    "burn_in_period": "grace_period=",
    "n_warmup_steps": "grace_period=",
    "interval_steps": "interval=",
    "min_samples_required": "min_samples=",
    "n_min_trials": "min_samples=",
    "n_startup_trials": "min_completed=",
    "custom_explore_fn": "explore=",
    "resource_attr": "time_attr=",
    "random_seed": "seed=",
}
#: Arguments of domains in Optuna and Ray Tune that are separate domains here.
OF_DOMAINS: Final = {
    "log": "mqtune.loguniform(low, high) or mqtune.lograndint(low, high)",
    **dict.fromkeys(("step", "q"), "mqtune.quniform(low, high, q) or mqtune.qrandint(low, high, q)"),
}
#: Ray Tune's names of resources.
OF_RESOURCES: Final = {
    **dict.fromkeys(("gpu", "GPU", "num_gpus"), "gpus="),
    **dict.fromkeys(("cpu", "CPU", "num_cpus"), "cpus="),
    **dict.fromkeys(("memory", "gpu_memory"), "gpu_memory_gb="),
}
_MEANT: Final = {name: meant for meant, names in _OF_OTHERS.items() for name in names}
#: Arguments that belong to the experiment, not to a searcher.
OF_OBJECTIVE: Final = dict.fromkeys(_CONSTRAINTS, 'Tuner(metric=["loss", "latency <= 10"])')


def refuse_unknown(owner: str, given: Iterable[str], known: Collection[str], elsewhere: Mapping[str, str]) -> None:
    """Refuse unknown arguments of *owner*. *elsewhere* has hints for known wrong names.

    Raises:
        ConfigurationError: a name is unknown. The message suggests the likely name.
    """
    for name in given:
        if name in known:
            continue
        # A name that begins like this one is a better hint than a similar one.
        begin_so = [own for own in known if own.startswith(name)]
        near = [f"{own}=" for own in begin_so or difflib.get_close_matches(name, known, n=1)]
        likely = [elsewhere[name]] if name in elsewhere else near
        hint = f"do you mean {likely[0]}?" if likely else f"it has {names_in_words(known) or 'none'}"
        raise ConfigurationError(f"{owner} has no argument {name!r}; {hint}")


class _OfConstructor:
    """A class's signature, taken from its constructor.

    Python before 3.11.4 takes it from an inherited ``__new__`` (its issue 105080).
    """

    def __get__(self, instance: object, owner: type) -> inspect.Signature | None:
        constructor = inspect.getattr_static(owner, "__init__")
        if constructor is object.__init__:
            return None
        signature = signature_of(constructor)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class KnownArguments:
    """Base of classes that refuse unknown arguments and suggest the likely name."""

    __slots__ = ()
    __signature__ = _OfConstructor()
    #: Hints for wrong names: an argument of the class, such as ``keep_last=``, or another class's argument.
    meant: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *args: object, **options: object) -> Self:
        """Refuse unknown arguments. The constructor handles all others.

        Raises:
            ConfigurationError: as ``refuse_unknown``.
            TypeError: the class takes no arguments.
        """
        # Without __init__, Python lets __new__ accept any arguments.
        if cls.__init__ is object.__init__ and (args or options):
            raise TypeError(f"{cls.__name__}() takes no arguments")
        if options:
            parameters = signature_of(cls).parameters
            if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
                known = list(parameters)
                meant = {name: hint for name, hint in cls.meant.items() if not hint.endswith("=") or hint[:-1] in known}
                refuse_unknown(cls.__name__, options, known, meant)
        return super().__new__(cls)


def no_attribute(owner: str, name: str, meant: Mapping[str, str]) -> AttributeError:
    """Return the error for a missing attribute. *meant* has hints for other libraries' names."""
    hint = f"; do you mean {meant[name]}?" if name in meant else ""
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")


def naming(meant: Mapping[str, str]) -> Callable[[object, str], object]:
    """Return a class's ``__getattr__``, with hints for other libraries' attribute names.

    Hide it from type checkers: they would accept every attribute.
    """

    def find(self: object, name: str) -> object:
        if name in meant:
            raise no_attribute(type(self).__name__, name, meant)
        # The attribute is a property that raised an AttributeError. Raise that again.
        return object.__getattribute__(self, name)

    return find


def with_hints(
    elsewhere: Mapping[str, str], others: Mapping[str, str] = _MEANT
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function so that unknown arguments raise an error with a hint.

    *elsewhere* has hints for mqtune's own names, and *others* for names from other libraries. By default these are the
    names for ``Tuner``.
    """

    def decorated(call: Callable[P, T]) -> Callable[P, T]:
        owner = call.__qualname__.removesuffix(".__init__")
        known = [name for name in inspect.signature(call).parameters if name != "self"]

        @functools.wraps(call)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            if not kwargs.keys() <= set(known):
                say_in_one_line()
                refuse_unknown(owner, kwargs, known, {**others, **elsewhere})
            return call(*args, **kwargs)

        return checked

    return decorated
