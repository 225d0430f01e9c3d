"""The space and objective of an Ax ``Client``, as mqtune's."""

from __future__ import annotations

from ax.api.client import Client
from ax.core.parameter import ChoiceParameter, FixedParameter, Parameter, ParameterType, RangeParameter

from mqtune import Space, choice, lograndint, loguniform, ordinal, randint, uniform
from mqtune.extend import Choice, ConfigurationError, Domain, Objective
from mqtune.integrations.ax_private import experiment_of


def space_of(client: Client) -> dict[str, Domain]:
    """Return a client's space as a space for a ``Tuner``. A fixed value becomes a choice of one.

    Constraints between parameters are left to Ax.

    Raises:
        ConfigurationError: the client has no experiment, or dependent parameters.
    """
    if experiment_of(client) is None:
        raise ConfigurationError("the Client has no experiment; call client.configure_experiment(…) before")
    space = experiment_of(client).search_space
    if space.is_hierarchical:
        raise ConfigurationError("the Client's parameters depend on each other, which AxSearcher doesn't know")
    return {name: _to_domain(parameter) for name, parameter in space.parameters.items()}


def _to_domain(parameter: Parameter) -> Domain:
    match parameter:
        case RangeParameter(parameter_type=ParameterType.INT):
            return (lograndint if parameter.log_scale else randint)(int(parameter.lower), int(parameter.upper))
        case RangeParameter():
            return (loguniform if parameter.log_scale else uniform)(parameter.lower, parameter.upper)
        case ChoiceParameter():
            return (ordinal if parameter.is_ordered else choice)(parameter.values)
        case FixedParameter():
            return choice([parameter.value])
        case _:
            raise ConfigurationError(f"AxSearcher: {parameter} is a parameter that mqtune has nothing like")


def check_alike(space: Space, client: Client) -> None:
    """Check that a client has the Tuner's space. The order of choices is ignored.

    Raises:
        ConfigurationError: the spaces differ.
    """
    theirs = Space(dict(space_of(client))).domains
    names = theirs.keys() | space.domains.keys()
    differing = [name for name in sorted(names) if not _is_alike(theirs.get(name), space.domains.get(name))]
    if differing:
        raise ConfigurationError(
            f"AxSearcher: the Client is of another space than the Tuner's: {', '.join(differing)} differ; give the "
            "Tuner mqtune.integrations.ax_space.space_of(client)"
        )


def _is_alike(one: Domain | None, other: Domain | None) -> bool:
    if isinstance(one, Choice) and isinstance(other, Choice):
        return sorted(map(repr, one.options)) == sorted(map(repr, other.options))
    return one == other


def constrained_metrics(client: Client) -> list[str]:
    """Return the names of metrics with outcome constraints.

    Raises:
        ConfigurationError: the client has no objective.
    """
    if experiment_of(client) is None or experiment_of(client).optimization_config is None:
        raise ConfigurationError(
            "AxSearcher: the Client has no objective; call client.configure_experiment(…) and "
            "client.configure_optimization(…) before"
        )
    bounds = experiment_of(client).optimization_config.all_constraints
    return list(dict.fromkeys(name for bound in bounds for name in bound.metric_names))


def check_objective(objective: Objective, client: Client) -> None:
    """Check that a client optimises the Tuner's metrics.

    Raises:
        ConfigurationError: it optimises other metrics, or a weighted sum.
    """
    theirs = experiment_of(client).optimization_config.objective
    modes = {name: "max" if weight > 0 else "min" for name, weight in theirs.metric_weights}
    if theirs.is_scalarized_objective or modes != dict(zip(objective.metrics, objective.modes, strict=True)):
        raise ConfigurationError(
            f"AxSearcher: the Client maximises {theirs.expression!r}, and the Tuner goes by {objective}; give both the "
            "same metrics, and report a sum as a metric of its own"
        )
