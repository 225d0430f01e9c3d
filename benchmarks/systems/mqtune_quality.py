"""mqtune's whole driver on simulated workers, with TPE and both forms of ASHA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.measurement import Context, Variant
from benchmarks.quality.slots import SLOTS, Record
from benchmarks.quality.tasks import EPOCHS, Parameter, Task
from benchmarks.work import quality

__all__ = ["VARIANTS", "flat", "space"]

#: More trials than the time is enough for.
TRIALS: Final = 100_000


def _run(searcher: str, scheduler: str) -> Any:
    def run(_: Context, task: Task, seed: int, budget_s: float) -> Record:
        import mqtune
        from benchmarks import trainables

        def curve(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, float]]]:
            for epoch_s, loss in task.curve(flat(config), seed):
                yield epoch_s, {"loss": loss}

        record = Record()

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
            searcher=searcher,
            scheduler=getattr(mqtune, scheduler)(EPOCHS),
            stop=mqtune.TimeLimit(budget_s),
            backend=mqtune.Simulated(curve, slots=SLOTS, checkpoints=scheduler != "ASHA"),
            name=f"{task.name}-{seed}",
            seed=seed,
            run=mqtune.RunOptions(progress=False, callbacks=[Recording()]),
        ).run()
        return record

    return run


def space(task: Task, where: tuple[str, str] | None = None) -> dict[str, object]:
    """Return the part of a task's space that hangs on *where*: what hangs on a choice is in that entry, beside the choice's name."""
    return {
        name: _domain(each, [space(task, (name, choice)) for choice in each.choices], name)
        for name, each in task.parameters.items()
        if (each.where is None if where is None else each.hangs_on(*where))
    }


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as the task has it."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value) if isinstance(value, dict) else {name: value}
    return found


def _domain(parameter: Parameter, hanging: Sequence[Mapping[str, object]], name: str) -> object:
    import mqtune

    if any(hanging):
        return mqtune.choice([{name: each, **rest} for each, rest in zip(parameter.choices, hanging, strict=True)])
    if parameter.choices:
        return mqtune.choice(parameter.choices)
    if parameter.is_whole:
        return mqtune.randint(int(parameter.low), int(parameter.high))
    return mqtune.uniform(parameter.low, parameter.high)


def _variant(name: str, settings: str, searcher: str, scheduler: str = "ASHA") -> Variant:
    return Variant(
        name=name,
        settings=f"the whole driver, simulated workers, journal's copy on disk; {settings}",
        measure=quality.measure(_run(searcher, scheduler)),
        deadline_s=quality.DEADLINE_S,
    )


VARIANTS: Final = (
    _variant("TPE + ASHA", 'searcher="tpe", scheduler=ASHA(27)', "tpe"),
    _variant("TPE + promotion", 'searcher="tpe", scheduler=PromotionASHA(27), checkpoints', "tpe", "PromotionASHA"),
    _variant("random + ASHA", "random search, scheduler=ASHA(27)", "random"),
)
