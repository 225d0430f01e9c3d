"""The examples of docs/adapters.md report, save, stop and resume with the real libraries."""

from __future__ import annotations

import importlib.util
import math
import os
import random
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from attempts import AttemptHere
from test_layers import NOT_IN_TRIALS, ROOT, imports_of, part_of

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import AttemptEnd
from mqtune.integrations import CallbackReports

pytestmark = pytest.mark.slow
PAGE: Final = (ROOT.parent / "docs" / "adapters.md").read_text()
#: The module of mqtune for each library, and the heading of its section.
TITLES: Final = {
    "sklearn": "scikit-learn",
    "lightning": "PyTorch Lightning",
    "transformers": "Hugging Face Trainer",
    "keras": "Keras",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
}
EPOCHS: Final = 4

Train = Callable[[dict[str, Any]], object]


@pytest.fixture(params=TITLES)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One library after the other; the test is skipped without it."""
    name: str = request.param
    if name == "keras" and "KERAS_BACKEND" not in os.environ:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not here")
    return name


@pytest.fixture
def quiet() -> Iterator[None]:
    """Ignore the warnings of these libraries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def example(library: str) -> dict[str, Any]:
    """The names that a section's example defines."""
    _, found, rest = PAGE.partition(f"\n## {TITLES[library]}\n")
    assert found
    block = re.search(r"^```python\n(.*?)^```", rest, re.MULTILINE | re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {"__name__": "training"}
    exec(compile(block[1], f"{library} of the page", "exec"), names)
    return names


@pytest.fixture
def train(library: str, quiet: None) -> Train:
    return example(library)["train"]


@pytest.fixture
def new_attempt(tmp_path: Path) -> Iterator[Callable[..., AttemptHere]]:
    made: list[AttemptHere] = []

    def make(**message: Any) -> AttemptHere:
        (tmp_path / "attempt").mkdir(exist_ok=True)
        made.append(AttemptHere(tmp_path, **{"attempt": len(made) + 1, **message}))
        return made[-1]

    yield make
    for attempt in made:
        attempt.close()


def iterations(attempt: AttemptHere) -> list[int]:
    return [row["training_iteration"] for row in attempt.rows()]


def interrupting(monkeypatch: pytest.MonkeyPatch, after: int, tell: Callable[[], None]) -> None:
    """Have the trial notified in the middle of its training, after this number of reports."""
    made, make = [0], CallbackReports.make

    def told(self: CallbackReports, *arguments: Any) -> None:
        if made[0] == after:
            tell()
        made[0] += 1
        make(self, *arguments)

    monkeypatch.setattr(CallbackReports, "make", told)


def seeded(train: Train) -> Train:
    """Train with the same random numbers each time; a trial begins with its own."""

    def train_seeded(config: dict[str, Any]) -> object:
        random.seed(0)
        for name in ("numpy.random", "torch"):
            if (module := sys.modules.get(name)) is not None:
                getattr(module, "seed" if name == "numpy.random" else "manual_seed")(0)
        return train(config)

    return train_seeded


def test_each_epoch_is_reported_with_its_checkpoint(train: Train, new_attempt: Callable[..., AttemptHere]) -> None:
    attempt = new_attempt()

    # Random weights may begin at the optimum, which leaves nothing to learn.
    ending = attempt.run(seeded(train), {"lr": 0.1})

    assert ending.end is AttemptEnd.COMPLETED, ending
    assert iterations(attempt) == [1, 2, 3, 4]
    assert [set(row) for row in attempt.reports()] == [{"loss"}] * EPOCHS
    assert all(math.isfinite(value) for value in attempt.values())
    assert attempt.values()[-1] < attempt.values()[0]
    assert attempt.checkpoints() == [f"p-t1-1-{number}" for number in range(1, EPOCHS + 1)]
    assert [path for path in Path(attempt.message["folder"]).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("action", ["pause", "stop"])
def test_a_trial_that_is_told_ends_at_once_and_goes_on_with_the_next_epoch(
    train: Train, new_attempt: Callable[..., AttemptHere], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    whole, first = new_attempt(trial="whole"), new_attempt()
    train = seeded(train)
    whole.run(train, {"lr": 0.1})
    with monkeypatch.context() as patch:
        interrupting(patch, 2, getattr(first, action))
        ending = first.run(train, {"lr": 0.1})
    assert ending.end is (AttemptEnd.STOPPED if action == "stop" else AttemptEnd.PAUSED), ending
    assert iterations(first) == [1, 2]

    second = new_attempt(checkpoint=first.checkpoints()[-1])
    ending = second.run(train, {"lr": 0.1})

    assert ending.end is AttemptEnd.COMPLETED, ending
    assert iterations(second) == [3, 4]
    assert [*first.values(), *second.values()] == pytest.approx(whole.values(), rel=1e-3)


def test_an_unknown_metric_is_named(library: str, quiet: None, new_attempt: Callable[..., AttemptHere]) -> None:
    if library == "sklearn":
        pytest.skip("its scores are those that were asked for")
    names = example(library)
    callback = names["MqtuneCallback"]
    names["MqtuneCallback"] = lambda metrics, **given: callback("accuracy", **given)
    attempt = new_attempt()

    ending = attempt.run(names["train"], {"lr": 0.1})

    assert "there is no metric 'accuracy' to report; there are: " in ending.error
    assert attempt.reports() == []


def test_a_checkpoint_is_saved_on_request(library: str, quiet: None, new_attempt: Callable[..., AttemptHere]) -> None:
    names = example(library)
    kind = "Rounds" if library == "sklearn" else "MqtuneCallback"
    made = names[kind]
    names[kind] = lambda *arguments, **given: made(*arguments, **{**given, "checkpoint_every": 0})
    attempt = new_attempt()
    attempt.want_saved(1)

    attempt.run(names["train"], {"lr": 0.1})

    assert attempt.checkpoints() == ["p-t1-1-1", "", "", ""]


class InDict:
    """A storage of estimators."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def dump(self, value: Any, filename: str) -> None:
        Path(filename).write_text(key := str(len(self.kept)))
        self.kept[key] = value

    def load(self, filename: str) -> Any:
        return self.kept[Path(filename).read_text()]


def test_a_forest_grows_on_from_its_checkpoint_by_the_new_config(new_attempt: Callable[..., AttemptHere]) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    from mqtune.integrations import Rounds

    storage, forests = InDict(), []
    data = [[float(number)] for number in range(20)], [0, 1] * 10

    def train(config: dict[str, Any]) -> None:
        forest = ensemble.RandomForestClassifier(min_samples_leaf=config["leaf"], random_state=0)
        rounds = Rounds(data, scoring="accuracy", checkpoint_every=1, storage=storage)
        forests.append(rounds.warm_start(forest, *data, [{"n_estimators": trees} for trees in config["trees"]]))

    first = new_attempt()
    first.run(train, {"leaf": 1, "trees": [2, 4]})
    second = new_attempt(checkpoint=first.checkpoints()[-1])
    second.run(train, {"leaf": 3, "trees": [2, 4, 6, 8]})

    assert [iterations(first), iterations(second)] == [[1, 2], [3, 4]]
    assert [len(forest.estimators_) for forest in forests] == [8, 8]
    assert forests[1].min_samples_leaf == 3
    assert all(0.0 <= value <= 1.0 for value in second.values("accuracy"))


def test_lightning_reports_each_validation_in_training(quiet: None, new_attempt: Callable[..., AttemptHere]) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    names = example("lightning")
    callbacks = []

    class Line(names["Line"]):  # type: ignore[misc]
        def validation_step(self, batch, number):
            self.log("val_loss", self.training_step(batch, number))

        def log(self, name, value, **_):
            super().log(name.replace("train_", "any_"), value, on_epoch=True)

    class Trainer(lightning.Trainer):  # type: ignore[misc]
        def __init__(self, *, max_epochs, callbacks, **given):
            super().__init__(max_epochs=2, callbacks=callbacks, val_check_interval=0.5, num_sanity_val_steps=1, **given)

        def fit(self, model, data, ckpt_path):
            super().fit(model, data, data, ckpt_path=ckpt_path)
            self.validate(model, data, verbose=False)
            callbacks.append(ckpt_path)

    callback = names["MqtuneCallback"]
    made = {"on": "validation", "checkpoint_every": 1}
    names |= {"Line": Line, "Trainer": Trainer, "MqtuneCallback": lambda *_, **given: callback("val_loss", **made)}
    first = new_attempt()
    ending = first.run(names["train"], {"lr": 0.1})
    second = new_attempt(checkpoint=first.checkpoints()[2])
    second.run(names["train"], {"lr": 0.1})

    assert ending.end is AttemptEnd.COMPLETED, ending
    assert [iterations(first), iterations(second)] == [[1, 2, 3, 4], [4]]
    with pytest.raises(ConfigurationError, match="on='step': give 'epoch' or 'validation'"):
        callback(on="step")


@pytest.mark.parametrize("strategy", ["no", "epoch"])
def test_trainer_reports_several_data_sets_once_and_keeps_what_it_saves_itself(
    quiet: None, tmp_path: Path, new_attempt: Callable[..., AttemptHere], strategy: str
) -> None:
    pytest.importorskip("transformers")
    names = example("transformers")
    arguments, trainer = names["TrainingArguments"], names["Trainer"]
    callback = names["MqtuneCallback"]
    output = tmp_path / "output"

    def with_two(*given: Any, eval_dataset: Any, **rest: Any) -> Any:
        return trainer(*given, eval_dataset={"a": eval_dataset, "b": eval_dataset}, **rest)

    names |= {
        "TrainingArguments": lambda **given: arguments(
            **{**given, "output_dir": str(output), "save_strategy": strategy, "eval_on_start": True}
        ),
        "Trainer": with_two,
        "MqtuneCallback": lambda *_, **given: callback(["eval_a_loss", "eval_b_loss"], checkpoint_every=2),
    }
    attempt = new_attempt()

    ending = attempt.run(names["train"], {"lr": 0.1})

    assert ending.end is AttemptEnd.COMPLETED, ending
    assert [set(row) for row in attempt.reports()] == [{"eval_a_loss", "eval_b_loss"}] * EPOCHS
    assert attempt.checkpoints() == ["", "p-t1-1-1", "", "p-t1-1-2"]
    assert len(list(output.glob("checkpoint-*"))) == (EPOCHS if strategy == "epoch" else 0)


def test_trainer_without_evaluations_is_refused_at_once(quiet: None, new_attempt: Callable[..., AttemptHere]) -> None:
    pytest.importorskip("transformers")
    names = example("transformers")
    arguments = names["TrainingArguments"]
    names["TrainingArguments"] = lambda **given: arguments(**{**given, "eval_strategy": "no"})

    ending = new_attempt().run(names["train"], {"lr": 0.1})

    assert "give TrainingArguments(eval_strategy='epoch')" in ending.error


LIGHT: Final = {"core", "checkpoints", "trainable", "integrations"}


def home_of(module: str) -> str:
    """Return the module that defines an imported name, also one that a facade passes on."""
    facade, _, name = module.rpartition(".")
    if facade not in ("mqtune", "mqtune.extend"):
        return module
    # A constant is of no module, and one of the core's.
    return str(getattr(getattr(import_module(facade), name), "__module__", "mqtune.core"))


@pytest.mark.parametrize("name", [*TITLES, "in_trials"])
def test_an_adapter_is_light(tmp_path: Path, name: str) -> None:
    shutil.copy(ROOT / "integrations" / f"{name}.py", tmp_path)
    imports = [each.module for each in imports_of(tmp_path)]

    assert imports
    homes = {home_of(module) for module in imports if module.startswith("mqtune.")}
    assert {part_of(module.partition(".")[2]) for module in homes if module.startswith("mqtune.")} <= LIGHT
    assert {module.split(".")[0] for module in imports} & set(NOT_IN_TRIALS) == set()
    assert {module for module in imports if module.startswith("mqtune.integrations.")} <= {
        f"mqtune.integrations.in_trials.{what}" for what in ("Metrics", "CallbackReports", "fetched_checkpoint")
    }
