"""What to say of an argument that there isn't: how it is called here, where another library has one of its name."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, ParamSpec, TypeVar

from mqtune.core.calls import signature_of
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import names_in_words, say_in_one_line

P = ParamSpec("P")
T = TypeVar("T")

#: What Optuna, Ax and others call bounds on what trials report.
_CONSTRAINTS: Final = ("outcome_constraints", "constraints", "constraints_func", "metric_constraints")
#: What Ray Tune, Optuna, Syne Tune and Ax call arguments of ``Tuner``.
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
#: What Ray Tune and Optuna call methods and attributes of the tuner.
TUNERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("fit", "optimize", "tune"), "tuner.run()"),
    "enqueue_trial": "tuner.add(config)",
    "get_results": "tuner.results()",
    **dict.fromkeys(("best_trial", "best_params", "best_value"), "tuner.run().best"),
}
#: What Ray Tune calls options, and options of one group of settings that are looked for in another.
OF_GROUPS: Final[Mapping[str, str]] = {
    "num_to_keep": "keep_last=",
    "checkpoint_score_attribute": "score=",
    "checkpoint_score_order": "mode=",
    "storage_path": "store, the first argument of Checkpoints",
    "name": "Tuner(name=…)",
    "stop": "Tuner(stop=…)",
}
#: What is the experiment's, or what other libraries call arguments of schedulers and stop rules.
_OF_DECIDERS: Final[Mapping[str, str]] = {
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
#: What Optuna and Ray Tune call arguments of domains that are domains of their own here.
OF_DOMAINS: Final = {
    "log": "mqtune.loguniform(low, high) or mqtune.lograndint(low, high)",
    **dict.fromkeys(("step", "q"), "mqtune.quniform(low, high, q) or mqtune.qrandint(low, high, q)"),
}
#: What Ray Tune calls resources.
OF_RESOURCES: Final = {
    **dict.fromkeys(("gpu", "GPU", "num_gpus"), "gpus="),
    **dict.fromkeys(("cpu", "CPU", "num_cpus"), "cpus="),
    **dict.fromkeys(("memory", "gpu_memory"), "gpu_memory_gb="),
}
_MEANT: Final = {name: meant for meant, names in _OF_OTHERS.items() for name in names}
#: What somebody may give a searcher, and is the experiment's.
OF_OBJECTIVE: Final = dict.fromkeys(_CONSTRAINTS, 'Tuner(metric=["loss", "latency <= 10"])')


def refuse_unknown(owner: str, given: Iterable[str], known: Collection[str], elsewhere: Mapping[str, str]) -> None:
    """Refuse arguments that there aren't.

    Args:
        owner: whose arguments they are, such as ``Tuner``.
        given: the names of those that were given.
        known: the names that there are.
        elsewhere: what is meant by other names.

    Raises:
        ConfigurationError: one is not known; the message has the name that is likely meant.
    """
    for name in given:
        if name in known:
            continue
        near = [f"{each}=" for each in difflib.get_close_matches(name, known, n=1)]
        likely = [elsewhere[name]] if name in elsewhere else near
        hint = f"do you mean {likely[0]}?" if likely else f"it has {names_in_words(known) or 'none'}"
        raise ConfigurationError(f"{owner} has no argument {name!r}; {hint}")


def refuse_unknown_to(decider: type, given: Iterable[str]) -> None:
    """Refuse arguments that a scheduler or a stop rule hasn't.

    Raises:
        ConfigurationError: as ``refuse_unknown``.
    """
    parameters = signature_of(decider).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    meant = {
        name: meant
        for name, meant in _OF_DECIDERS.items()
        if meant.startswith("Tuner") or meant.removesuffix("=") in parameters
    }
    refuse_unknown(decider.__name__, given, [*parameters], meant)


def with_hints(
    elsewhere: Mapping[str, str], others: Mapping[str, str] = _MEANT
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function: an argument that it hasn't is an error that says which one is meant, *elsewhere* or by another name.

    Args:
        elsewhere: what is meant by names of mqtune's.
        others: what is meant by those of other libraries; by default as for ``Tuner``.
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
