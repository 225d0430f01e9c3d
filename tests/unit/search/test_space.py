"""Search spaces: their samples, their refusals and the texts of these."""

from __future__ import annotations

import enum
import math
import random
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

from mqtune import (
    Space,
    choice,
    grid_search,
    lograndint,
    loguniform,
    normal,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    sample_from,
    uniform,
)
from mqtune.core.errors import SpaceError
from mqtune.core.trial import Config
from mqtune.search import Domain, space_of

#: A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def samples(domain: Domain) -> list[Any]:
    """Return what a space with this one domain samples."""
    rng, space = random.Random(0), Space({"x": domain})
    return [space.sample(rng)["x"] for _ in range(300)]


seeds = st.integers(0, 2**32)


@pytest.mark.parametrize("make", [quniform, qloguniform])
@patient
@given(
    low=st.decimals(1, 50, places=3),
    width=st.decimals(1, 1000, places=3),
    q=st.decimals("0.001", 1, places=3),
    seed=seeds,
)
def test_quantised_floats_are_exact_multiples_within_the_bounds(
    make: Callable[..., Domain], low: Decimal, width: Decimal, q: Decimal, seed: int
) -> None:
    space = Space({"x": make(float(low), float(low + width), float(q))})

    config = space.sample(random.Random(seed))

    written = Decimal(str(config["x"]))
    assert isinstance(config["x"], float)
    assert low <= written <= low + width
    assert written % q == 0
    space.check(config, partial=False)


domains = st.one_of(
    st.builds(lambda low, width: uniform(low, low + width), st.floats(-10, 10), st.floats(0.5, 10)),
    st.builds(lambda low, factor: loguniform(low, low * factor), st.floats(1e-9, 10), st.floats(1.5, 1e6)),
    st.builds(lambda low, steps: quniform(low, low + steps, 0.1), st.integers(-5, 5), st.integers(1, 50)),
    st.builds(lambda low, steps: qloguniform(low, low + steps, 0.05), st.floats(0.001, 5), st.integers(1, 50)),
    st.builds(normal, st.floats(-10, 10), st.floats(0.1, 10)),
    st.builds(lambda low, width: randint(low, low + width), st.integers(-50, 50), st.integers(1, 50)),
    st.builds(lambda low, width: qrandint(low, low + width, 3), st.integers(-50, 50), st.integers(3, 50)),
    st.builds(lambda low, width: lograndint(low, low + width), st.integers(1, 50), st.integers(1, 50)),
    st.builds(lambda low, width: qlograndint(low, low + width, 3), st.integers(1, 50), st.integers(3, 50)),
    st.builds(qrandn, st.floats(-10, 10), st.floats(0.1, 10), st.sampled_from([0.05, 0.1, 0.3, 2])),
    st.builds(
        choice, st.lists(st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.text(), st.binary()), min_size=1)
    ),
    st.builds(grid_search, st.lists(st.one_of(st.integers(-9, 9), st.lists(st.floats())), min_size=1, max_size=4)),
    st.just(sample_from(lambda config: len(config))),
    st.integers(-5, 5),
)
keys = st.text("abcd", min_size=1, max_size=3)
definitions = st.recursive(
    st.dictionaries(keys, domains, max_size=4), lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=5
)


@patient
@given(definition=definitions, seed=seeds)
def test_what_is_sampled_passes_its_spaces_check_and_travels(definition: dict[str, Any], seed: int) -> None:
    space = Space(definition)
    point = next(space.grid_points())
    drawn, again = space.draws(np.random.default_rng(seed)), space.draws(np.random.default_rng(seed))
    sampled, config = space.sample(random.Random(seed)), space.config(next(drawn) | point)

    for each in (sampled, config):
        space.check(each, partial=False)
        assert repr(msgpack.unpackb(msgpack.packb(each))) == repr(each)
    assert repr(space.complete(sampled, random.Random(0))) == repr(sampled)
    assert repr(space.sample(random.Random(seed))) == repr(sampled)
    assert repr(space.config(next(again) | point)) == repr(config)
    msgpack.packb(space.describe())


shares = st.one_of(st.just(0.0), st.just(1 - 2**-53), st.floats(0, 1, exclude_max=True))


@patient
@given(
    low=st.integers(-(2**63), 2**64 - 2), width=st.integers(1, 2**65), q=st.integers(1, 2**65), share=shares, seed=seeds
)
def test_whole_numbers_lie_in_their_bounds_on_their_grid(low: int, width: int, q: int, share: float, seed: int) -> None:
    high = low + width
    assume(high < 2**64 and q <= width)

    made = [(randint(low, high), 1), (qrandint(low, high, q), q)]
    for domain, step in [*made, (lograndint(low, high), 1)] if low > 0 else made:
        for value in (domain.at(share), domain.sample(random.Random(seed))):
            assert type(value) is int
            assert low <= value <= high
            assert value % step == 0


@patient
@given(low=st.floats(allow_nan=False, allow_infinity=False), high=st.floats(allow_nan=False), share=shares)
def test_a_float_at_a_share_is_within_its_bounds_however_far_apart(low: float, high: float, share: float) -> None:
    assume(low < high < math.inf)

    assert low <= uniform(low, high).at(share) <= high
    if low >= 1e-300:
        assert low <= loguniform(low, high).at(share) <= high


def test_naming_a_space_does_not_import_numpy() -> None:
    # A trial's module may name one, and its process must not wait for unused imports.
    code = "import sys, mqtune.search.space; mqtune.uniform(0, 1), mqtune.search.Searcher, mqtune.ASHA; sys.exit('numpy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_both_bounds_of_every_integer_domain_are_included() -> None:
    assert set(samples(randint(0, 3))) == {0, 1, 2, 3}
    assert set(samples(lograndint(1, 4))) == {1, 2, 3, 4}
    assert set(samples(qrandint(0, 8, 4))) == {0, 4, 8}
    assert sorted(set(samples(quniform(0, 1, 0.1)))) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    # Bounds that are no multiples of q are left out.
    assert set(samples(quniform(0.25, 0.55, 0.1))) == {0.3, 0.4, 0.5}
    assert set(samples(qrandint(1, 10, 4))) == {4, 8}


def test_values_become_what_a_message_carries() -> None:
    color = enum.IntEnum("Color", {"RED": 3})
    as_they_are = {"bytes": b"\x00", "none": None, "limits": [-(2**63), 2**64 - 1, math.inf]}
    numbers = [np.float32(0.5), np.int64(7), np.bool_(True), np.array(1.5), np.str_("s"), color(3)]

    plain = Space({"x": {"tuple": (1, (2,)), "numbers": numbers, **as_they_are}}).sample(random.Random(0))["x"]

    assert plain == {"tuple": [1, [2]], "numbers": [0.5, 7, True, 1.5, "s", 3], **as_they_are}
    assert [type(item) for item in plain["numbers"]] == [float, int, bool, float, str, int]


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
NESTED: dict[str, Any] = {}
NESTED["again"] = NESTED


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        # A constant that can't travel, by its path.
        ({"a": {"b": 2**64}}, "a/b: 18446744073709551616 does not fit in 64 bits"),
        ({"a": {"b": Path("x")}}, "a/b: .*Path.* can't be sent to a worker; give None, bool"),
        ({"a": print}, "a: .* can't be sent to a worker; give a name that the trainable looks up, or sample_from"),
        ({"a": {1}}, r"a: \{1\} is of type set"),
        ({"a": [1, [2, object()]]}, r"a\[1\]\[1\]: <object"),
        ({"a": [{1: 2}]}, r"a\[0\]: the key 1 is not a string"),
        ({"a": 1 + 2j}, "a: .* is of type complex"),
        ({"a": bytearray(b"x")}, "a: .* is of type bytearray"),
        ({"a": "\ud800"}, "a: .* is not valid Unicode"),
        ({"a": [uniform(0, 1), print]}, r"a\[1\]: <built-in .* can't be sent"),
        ({"x": ENDLESS}, "does it hold itself"),
        (NESTED, "does one hold itself"),
        # A whole space that is one domain, as in Hyperopt.
        (choice([{"x": uniform(0, 1)}, {"x": 3}]), r"is one domain, and not a dict .*: give it a name, .*\{'model': choice"),
        *(({"outer": {key: 1}}, "the key .* under 'outer' is not a name") for key in (1, None, "", "a/b", ("a",))),
        # A function that fails, or needs its own value.
        ({"x": sample_from(lambda c: c["widht"]), "width": 1}, r"x: its sample_from function raised KeyError: .*widht \(there are x, width\)"),
        ({"x": sample_from(lambda spec: spec.config.widht), "width": 8}, r"x: .* raised AttributeError: widht \(there are x, width\)"),
        ({"in": {"x": sample_from(lambda c: object())}}, r"in/x: <object .* can't be sent"),
        ({"in": {"y": 1, "x": sample_from(lambda c: c["y"])}}, r"in/x: .*KeyError: .*\(there are in\).*It gets the whole config"),
        ({"a": sample_from(lambda c: c["b"]["c"]), "b": {"c": sample_from(lambda c: c["a"])}}, "need each other: a needs b/c needs a"),
        ({"a": sample_from(lambda c: sum(c.values())), "b": 1}, "need each other: a needs a"),
        ({"opt": choice([{"lr": grid_search([1, 2])}, 3])}, r"opt/lr: grid_search\(\[1, 2\]\) stands in an entry of a choice, .*use grid"),
    ],
)  # fmt: skip
def test_a_space_that_makes_no_sense_is_refused_by_path_and_value(definition: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Space(definition)


def test_configs_share_nothing_with_each_other_nor_with_the_space() -> None:
    layers = [1, 2]
    definition = {
        "constant": layers,
        "choice": choice([layers]),
        "grid": grid_search([layers]),
        "from": sample_from(lambda config: config["constant"]),
    }
    space = Space(definition)
    first = space.sample(random.Random(0))

    for name in definition:
        first[name].append(3)
    layers.append(4)

    assert space.sample(random.Random(0)) == {name: [1, 2] for name in definition}
    point = next(space.grid_points())
    point["grid"].append(3)
    assert space.sample(random.Random(0), point)["grid"] == [1, 2, 3]
    assert next(space.grid_points()) == {"grid": [1, 2]}
    finite = list(Space({"x": choice([[1]]), "y": randint(0, 1)}).configs())
    finite[0]["x"].append(9)
    assert finite[1]["x"] == [1]
    given_ = {"x": [1]}
    Space({"x": choice([[1], [3]])}).complete(given_, random.Random(0))["x"].append(9)
    assert given_ == {"x": [1]}
    conditional = Space({"a": choice([{"x": [1], "y": uniform(0, 1)}])})
    conditional.sample(random.Random(0))["a"]["x"].append(9)
    assert conditional.sample(random.Random(0))["a"]["x"] == [1]


def test_a_function_for_ray_tune_reads_the_config_as_there() -> None:
    space = Space(
        {
            "width": 8,
            "config": {"depth": 3},
            "twice": sample_from(lambda spec: spec.config.width * 2),
            "depth": sample_from(lambda spec: spec.config.config.depth + spec["width"]),
        }
    )

    config = space.sample(random.Random(0))

    assert (config["twice"], config["depth"]) == (16, 11)


@pytest.fixture
def space() -> Space:
    return Space(
        {
            "lr": loguniform(1e-4, 0.1),
            "model": {"width": qrandint(8, 64, 8), "act": choice(["relu", "gelu", None])},
            "dropout": quniform(0, 0.5, 0.1),
            "batch": grid_search([32, 64]),
            "double": sample_from(lambda config: config["model"]["width"] * 2),
            "epochs": 27,
        }
    )


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"lr": 1}, r"lr: 1 is outside loguniform\(0.0001, 0.1\)"),
        ({"lr": math.nan}, "lr: .*nan is not a finite number"),
        ({"model": {"width": 12}}, r"model/width: 12 is not a multiple of q=8 in qrandint\(8, 64, 8\); the nearest is"),
        ({"model": {"width": 16.0}}, "model/width: .*16.0 is not a whole number"),
        ({"model": {"act": "tanh"}}, r"model/act: 'tanh' is not one of choice\(\['relu', 'gelu', None\]\)"),
        ({"model": 3}, "model: 3 is not a dict"),
        ({"model": {"depth": 3}}, "model/depth is not in the space, which has width, act there"),
        ({"dropout": 0.1 + 0.2}, "dropout: 0.30000000000000004 is not a multiple of q=0.1 .* the nearest is 0.3"),
        ({"epochs": 28}, "epochs: 28 is not the constant 27"),
        ({"double": object()}, "double: .*can't be sent"),
        ([("lr", 0.1)], "the config: .* is not a dict"),
    ],
)
def test_a_point_outside_the_space_is_refused_by_path_and_value(space: Space, point: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        space.check(point)
    with pytest.raises(SpaceError, match=message):
        space.complete(point, random.Random(0))


def test_true_and_one_are_different_choices_and_nan_is_found() -> None:
    space = Space({"x": choice([1, True, math.nan])})

    assert space.complete({"x": True}, random.Random(0))["x"] is True
    assert space.complete({"x": 1.0}, random.Random(0))["x"] == 1
    assert math.isnan(space.complete({"x": math.nan}, random.Random(0))["x"])


OPTIMIZERS = [
    {"name": "adam", "lr": loguniform(1e-5, 1e-1), "betas": [uniform(0.8, 1), 0.999]},
    {"name": "sgd", "momentum": uniform(0, 1), "nesterov": choice([None, {"damping": quniform(0, 1, 0.5)}])},
    loguniform(1, 2),
    None,
]


@pytest.fixture
def conditional() -> Space:
    return Space({"layers": [randint(1, 4), {"width": randint(8, 9)}], "opt": choice(OPTIMIZERS), "seed": 3})


leaves = st.one_of(
    st.just(uniform(0, 1)), st.just(randint(0, 2)), st.just(choice(["a", None])), st.sampled_from(["text", 3])
)
conditionals = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(keys, inner, max_size=3),
        st.lists(inner, max_size=3),
        st.builds(choice, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=10,
)


@patient
@given(definition=st.dictionaries(keys, conditionals, max_size=3), seed=seeds)
def test_any_nesting_can_be_sampled_matched_and_described(definition: dict[str, Any], seed: int) -> None:
    space = Space(definition)
    again = space_of(msgpack.unpackb(msgpack.packb(space.describe())))
    drawn = space.draws(np.random.default_rng(seed))

    for config in (space.sample(random.Random(seed)), space.config(next(drawn))):
        space.check(config, partial=False)
        assert repr(msgpack.unpackb(msgpack.packb(config))) == repr(config)
        assert space.complete(config, random.Random(0)) == config
        assert space.changed(config, config, random.Random(0)) == config
        assert space.config(space.values(config)) == config
        values = space.values(config)
        assert space.config_of({path: values[path] for path in space.walk(values)}) == config
    assert again.describe() == space.describe()
    assert again.sample(random.Random(seed)) == space.sample(random.Random(seed))
    if space.size is not None and space.size < 500:
        configs = list(space.configs())
        assert len(configs) >= space.size
        for config in configs:
            space.check(config, partial=False)


def test_a_size_is_the_sum_over_the_entries_of_a_choice() -> None:
    space = Space(
        {"a": choice([{"x": randint(1, 3), "y": choice([1, 2])}, {"z": randint(1, 5)}, 0]), "b": [randint(1, 2), 1]}
    )

    configs = list(space.configs())

    assert space.size == len(configs) == len({repr(config) for config in configs}) == 2 * (6 + 5 + 1)
    twice = Space({"a": choice([1, 1, 2]), "b": {"c": randint(0, 2)}, "d": sample_from(lambda c: c["a"]), "e": "fixed"})
    assert twice.size == 6
    assert len({repr(config) for config in twice.configs()}) == 6
    assert all(config["d"] == config["a"] and config["e"] == "fixed" for config in twice.configs())
    assert Space({"a": choice([1]), "b": uniform(0, 1)}).size is None
    assert Space({"x": quniform(0, 1, 0.25)}).size == 5
    assert space.has_conditions
    assert Space({"a": choice([{"x": uniform(0, 1)}, 0])}).size is None
    assert not Space({"a": [uniform(0, 1)]}).has_conditions


def test_a_grid_walks_the_entries_and_what_each_has() -> None:
    space = Space(
        {
            "opt": grid_search([{"name": "adam", "lr": grid_search([0.1, 0.2])}, {"name": "sgd", "lr": uniform(0, 1)}]),
            "b": [grid_search([1, 2]), 0],
        }
    )

    points = list(space.grid_points())
    configs = [space.sample(random.Random(0), point) for point in points]

    assert space.grid_size == 6
    lr = configs[4]["opt"]["lr"]
    assert configs == [
        *({"opt": {"name": "adam", "lr": lr}, "b": [b, 0]} for lr in (0.1, 0.2) for b in (1, 2)),
        *({"opt": {"name": "sgd", "lr": lr}, "b": [b, 0]} for b in (1, 2)),
    ]
    assert [space.grid_point(config) for config in configs] == points


def test_a_point_is_taken_for_the_entry_that_it_fits(conditional: Space) -> None:
    def completed(**point: Any) -> Any:
        return conditional.complete(point, random.Random(0))

    assert completed(opt={"name": "adam"})["opt"].keys() == {"name", "lr", "betas"}
    assert completed(opt={"momentum": 0.5})["opt"]["name"] == "sgd"
    assert completed(opt={"nesterov": {}})["opt"]["nesterov"]["damping"] in (0, 0.5, 1)
    assert completed(opt=1.5, layers=(2, {}))["layers"][0] == 2
    assert completed(opt=None)["opt"] is None


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (
            {"opt": {"name": "adagrad"}},
            r"opt: .*fits no entry of choice\(.*opt/name: 'adagrad' is not the constant 'adam';",
        ),
        ({"opt": {"name": "sgd", "lr": 0.1}}, r"opt: .* 'lr': 0.1} fits no entry.*opt/lr is not in the space"),
        ({"opt": 3}, r"opt: 3 fits no entry of .*opt: 3 is not a dict; .*opt: 3 is outside loguniform\(1.0, 2.0\)"),
        ({"layers": [1]}, r"layers: \[1\] is not a list of 2"),
        ({"layers": 1}, r"layers: 1 is not a list of 2"),
        ({"layers": [1, {"width": 7}]}, r"layers\[1\]/width: 7 is outside randint"),
    ],
)
def test_a_point_that_fits_no_entry_is_refused_with_the_reasons(conditional: Space, point: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        conditional.check(point)


def test_what_a_config_lacks_is_named_as_the_config_has_it(conditional: Space) -> None:
    with pytest.raises(SpaceError, match=r"lacks layers\[1\]/width, opt/lr, seed"):
        conditional.check({"layers": [1, {}], "opt": {"name": "adam", "betas": [0.9, 0.999]}}, partial=False)
    with pytest.raises(SpaceError, match="lacks opt, seed"):
        conditional.check({"layers": [1, {"width": 8}]}, partial=False)


def test_a_change_keeps_the_entry_where_it_fits_it() -> None:
    space = Space({"a": choice([{"n": 1, "x": uniform(0, 1)}, {"n": 2, "x": uniform(0, 1), "y": uniform(0, 1)}])})
    config = {"a": {"n": 2, "x": 0.25, "y": 0.75}}

    assert space.changed(config, {"a": {"x": 0.5}}, random.Random(0)) == {"a": {"n": 2, "x": 0.5, "y": 0.75}}
    changed = space.changed(config, {"a": {"n": 1}}, random.Random(0))
    assert changed["a"].keys() == {"n", "x"}
    space.check(changed, partial=False)


def test_a_function_sees_the_entry_that_was_chosen_and_lists() -> None:
    space = Space(
        {
            "opt": choice([{"name": "adam", "twice": sample_from(lambda c: c["opt"]["name"] * 2)}, {"name": "sgd"}]),
            "layers": [randint(1, 4), sample_from(lambda c: c["layers"][0] + 1)],
            "depth": sample_from(lambda c: (len(c["layers"]), sum(c["layers"]), c["layers"][0], c["opt"]["name"])),
        }
    )

    found = [space.sample(random.Random(seed)) for seed in range(20)]

    assert {config["opt"].get("twice") for config in found} == {None, "adamadam"}
    for config in found:
        first, second = config["layers"]
        assert second == first + 1
        assert config["depth"] == [2, first + second, first, config["opt"]["name"]]


def test_a_conditional_description_is_plain_and_names_what_it_can_not_make_again() -> None:
    definition = {"opt": choice([{"name": "adam", "lr": [uniform(0, 1), 2]}, normal(0, 1), None])}

    assert Space(definition).describe() == {
        "opt": {
            "domain": "choice",
            "entries": [
                {
                    "dict": {
                        "name": {"constant": "adam"},
                        "lr": {"list": [{"domain": "uniform", "low": 0.0, "high": 1.0}, {"constant": 2}]},
                    }
                },
                {"domain": "normal", "mean": 0.0, "sd": 1.0},
                {"constant": None},
            ],
        }
    }
    assert repr(Space(definition)) == (
        "Space(opt: choice([{'name': 'adam', 'lr': [uniform(0.0, 1.0), 2]}, normal(0.0, 1.0), None]))"
    )
    computed = Space({"opt": choice([{"lr": sample_from(len)}, 1]), "l": [sample_from(len)]})
    with pytest.raises(SpaceError, match=r"opt: sample_from\(len\) can't be made without your code"):
        space_of(computed.describe())
    read = space_of(computed.describe(), any_unknown=True)
    assert read.values({"opt": {"lr": "what it was"}, "l": [3]}) == {"opt": 0, "opt/0/lr": "what it was", "l/0": 3}


def fits(config: Config) -> bool:
    """Say whether a network of this size fits into memory."""
    return bool(config["net"]["width"] * config["net"]["depth"] <= 64)


NET = {
    "net": {"width": randint(1, 64), "depth": randint(1, 64)},
    "lr": uniform(0, 1),
    "x": sample_from(lambda c: c["lr"]),
}


@pytest.fixture
def limited() -> Space:
    return Space(NET, constraint=fits)


def test_every_config_meets_the_constraint(limited: Space) -> None:
    rng, draws = random.Random(0), limited.draws(np.random.default_rng(0))

    for _ in range(200):
        assert fits(limited.sample(rng))
        assert fits(limited.draw(draws, {}))
        assert fits(limited.complete({"net": {"width": 32}}, rng))
    assert limited.constraint == "fits"
    assert Space(NET).constraint == ""


def test_a_config_that_the_constraint_refuses_is_named(limited: Space) -> None:
    refused = {"net": {"width": 64, "depth": 2}, "lr": 0.5}
    message = r"the constraint fits refuses {'net': {'width': 64, 'depth': 2}, 'lr': 0.5, 'x': 0.5}"
    for use in (
        lambda: limited.check(refused),
        lambda: limited.check({**refused, "x": 0.5}, partial=False),
        lambda: limited.complete(refused, random.Random(0)),
        lambda: limited.changed({**refused, "net": {"width": 64, "depth": 1}}, {"net": {"depth": 2}}, random.Random(0)),
    ):
        with pytest.raises(SpaceError, match=message):
            use()
    limited.check({"net": {"width": 64}})
    limited.check({"net": {"width": 64, "depth": 1}, "lr": 0.5, "x": 0.5}, partial=False)
    with pytest.raises(SpaceError, match=r"the constraint <lambda> refuses {'a': 1}"):
        Space({"a": 1}, constraint=lambda config: False)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (lambda config: config["a"] > 2, r"<lambda> allows none of 10,000 sampled configs, .* was {'a': 0"),
        (lambda config: config["b"] > 2, r"the constraint <lambda> raised KeyError: 'b', for {'a': 0"),
        (lambda config: None, r"the constraint <lambda> returned None for {'a': 0.*; return True or False"),
        (lambda config: np.array([1, 2]), r"the constraint <lambda> raised ValueError"),
        ("a < 2", r"constraint='a < 2' is not a function that takes a config and returns True or False"),
    ],
)
def test_a_constraint_that_can_not_be_met_or_fails_shows_when_the_space_is_built(constraint: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Space({"a": uniform(0, 1)}, constraint=constraint)


def test_a_constraint_can_not_change_a_config() -> None:
    def empties(config: Config) -> bool:
        config["net"].clear()
        return True

    assert Space(NET, constraint=empties).sample(random.Random(0))["net"].keys() == {"width", "depth"}


def test_a_grid_leaves_out_what_the_constraint_refuses() -> None:
    space = Space(
        {"a": grid_search([1, 2, 3]), "b": grid_search([1, 2, 3]), "x": uniform(0, 1)},
        constraint=lambda config: config["a"] < config["b"] and config["x"] < 0.1 * config["a"],
    )

    points = list(space.grid_points())

    assert points == [{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 2, "b": 3}]
    assert space.grid_size == 3
    rare = Space({"a": grid_search([1, 2]), "x": uniform(0, 1)}, constraint=lambda config: config["x"] < 1e-3)
    with pytest.raises(SpaceError, match="allows no point of the grid, with 200 samples each"):
        _ = rare.grid_size


def test_a_small_space_counts_what_its_constraint_allows() -> None:
    space = Space({"a": randint(1, 9), "b": randint(1, 9)}, constraint=lambda config: config["a"] < config["b"])

    assert space.size == len(list(space.configs())) == 36
    assert Space({"a": randint(1, 10_001)}, constraint=lambda config: config["a"] % 2 == 0).size is None


def test_a_constraint_stands_in_a_definition_by_its_name(limited: Space) -> None:
    assert limited.describe() == {**Space(NET).describe(), "/constraint": {"function": "fits"}}
    with pytest.raises(SpaceError, match="the space's constraint fits exists in your code alone"):
        space_of(limited.describe())
    assert space_of(limited.describe(), any_unknown=True).values({"lr": 0.5}) == {"lr": 0.5}
