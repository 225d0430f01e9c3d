"""mqtune's whole driver on simulated workers, with TPE under ASHA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.quality.tasks import EPOCHS, Parameter, Task
from benchmarks.work import quality

__all__ = ["VARIANTS", "flat", "space"]

#: More trials than the time is enough for.
TRIALS: Final = 100_000


def _run(task: Task, seed: int, budget_s: float) -> quality.Record:
    import mqtune
    from benchmarks import trainables

    def curve(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, float]]]:
        for epoch_s, loss in task.curve(flat(config), seed):
            yield epoch_s, {"loss": loss}

    record = quality.Record()

    class Recording(mqtune.Callback):
        in_loop = True
        began_at = 0.0

        def on_start(self, experiment: Any) -> None:
            self.began_at = experiment.created_at

        def on_report(self, trial: Any, report: Any) -> None:
            epoch = report.metrics["training_iteration"]
            record.add(report.timestamp - self.began_at, flat(trial.config), epoch, report.metrics["loss"])

    mqtune.Tuner(
        trainables.noop,
        space(task),
        metric="loss",
        mode="min",
        max_trials=TRIALS,
        searcher="tpe",
        scheduler=mqtune.ASHA(EPOCHS),
        stop=mqtune.TimeLimit(budget_s),
        backend=mqtune.Simulated(curve, slots=quality.SLOTS, checkpoints=False),
        name=f"{task.name}-{seed}",
        seed=seed,
        run=mqtune.RunOptions(progress=False, callbacks=[Recording()]),
    ).run()
    return record


def space(task: Task, where: tuple[str, str] | None = None) -> dict[str, object]:
    """Return a task's space, or only the parameters below the choice *where*.

    Parameters below a choice are nested in the choice's entry, beside its name.
    """
    return {
        name: _domain(parameter, [space(task, (name, choice)) for choice in parameter.choices], name)
        for name, parameter in task.parameters.items()
        if (parameter.where is None if where is None else parameter.hangs_on(*where))
    }


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without its nesting, as the task expects it."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        values |= flat(value) if isinstance(value, dict) else {name: value}
    return values


def _domain(parameter: Parameter, nested: Sequence[Mapping[str, object]], name: str) -> object:
    import mqtune

    if any(nested):
        return mqtune.choice([{name: each, **rest} for each, rest in zip(parameter.choices, nested, strict=True)])
    if parameter.choices:
        return mqtune.choice(parameter.choices)
    if parameter.is_whole:
        return mqtune.randint(int(parameter.low), int(parameter.high))
    return mqtune.uniform(parameter.low, parameter.high)


VARIANTS: Final = (
    quality.variant(
        "TPE + ASHA",
        'the whole driver, simulated workers, journal\'s copy on disk; searcher="tpe", scheduler=ASHA(27)',
        _run,
    ),
)
