"""A user's script with mqtune, on this machine alone: nothing is set that need not be."""

import mqtune
from benchmarks.training import trial


def train(config: dict[str, int]) -> None:
    trial.run(config["index"], lambda loss, epoch: mqtune.report({"loss": loss, "epoch": epoch}))


class Idle(mqtune.Callback):
    """Holds the driver when all trials have ended, while server and worker are up."""

    in_loop = True
    ended = 0

    def on_trial_end(self, _trial: object) -> None:
        self.ended += 1
        if self.ended == trial.SETTINGS.trials:
            trial.wait_until_left()


if __name__ == "__main__":
    settings = trial.SETTINGS
    tuner = mqtune.Tuner(
        train,
        {"index": mqtune.grid_search(list(range(settings.trials)))},
        metric="loss",
        mode="min",
        scheduler=mqtune.ASHA(max_t=27, time_attr="epoch"),
        backend=mqtune.Local(slots=settings.slots),
        run=mqtune.RunOptions(callbacks=[Idle()] if settings.parked else []),
    )
    tuner.run()
    if failed := [each for each in tuner.get_trials() if each.status is mqtune.TrialStatus.FAILED]:
        raise SystemExit(f"{len(failed)} trials failed, the first: {failed[0].reason}")
