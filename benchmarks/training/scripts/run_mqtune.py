"""A user's script with mqtune on this machine alone, with default settings."""

import mqtune
from benchmarks.training import trial


def train(config: dict[str, int]) -> None:
    trial.run(config["index"], lambda loss, epoch: mqtune.report({"loss": loss, "epoch": epoch}))


if __name__ == "__main__":
    settings = trial.SETTINGS
    tuner = mqtune.Tuner(
        train,
        {"index": mqtune.grid_search(list(range(settings.trials)))},
        metric="loss",
        mode="min",
        scheduler=mqtune.ASHA(max_t=27, time_attr="epoch"),
        backend=mqtune.Local(slots=settings.slots),
    )
    tuner.run()
    if failed := [run for run in tuner.get_trials() if run.status is mqtune.TrialStatus.FAILED]:
        raise SystemExit(f"{len(failed)} trials failed, the first: {failed[0].reason}")
