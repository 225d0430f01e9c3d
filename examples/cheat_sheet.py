"""Each public name of mqtune, once: a cheat sheet that is a program.

    python examples/cheat_sheet.py

runs it. The reference in docs/reference has the arguments of each.
"""

import mqtune

# In a trial.


def train(config):
    """Train, and save a small state."""
    checkpoint = mqtune.get_checkpoint()  # None at the first start
    state = checkpoint.data if checkpoint else {"epoch": 0, "weight": 0.0}
    try:
        while state["epoch"] < 9:
            weight = state["weight"] + config["lr"] * (1 - state["weight"])
            state = {"epoch": state["epoch"] + 1, "weight": weight}
            asked = mqtune.should_checkpoint()  # a person or scheduler asks for one
            mqtune.report({"loss": 1 - weight}, checkpoint=state if asked else None)
    except mqtune.StopTrial as told:  # raised in the trial when it has to end
        if told.action == "pause":
            mqtune.save_checkpoint(state)
        raise


def train_with_files(config):
    """Save files as a checkpoint."""
    print(mqtune.get_context().trial, "runs in", mqtune.get_context().folder)
    with mqtune.checkpoint_dir() as folder:  # these files belong to the next report
        (folder / "weights.txt").write_text("0.5")
    mqtune.report({"loss": config["lr"]})


def train_with_questions(config):
    """Ask the driver's script, and wait for its answer."""
    wanted = mqtune.ask({"what": "how many epochs?"})  # waits for tuner.answer(report, 9)
    mqtune.report({"loss": config["lr"] / wanted})


class Train(mqtune.Trainable):
    """A trainable in steps."""

    def setup(self, config):
        self.weight = 0.0

    def step(self):
        self.weight += self.config["lr"] * (1 - self.weight)
        return {"loss": 1 - self.weight, "done": self.training_iteration == 9}

    def save_checkpoint(self, folder):
        return {"weight": self.weight}  # or write files into the folder

    def load_checkpoint(self, checkpoint):
        self.weight = checkpoint.data["weight"]


script = mqtune.Script(["train.py", "--{name}={value}"], metrics=r"^val loss (?P<loss>\S+)")

# Search spaces.

space = {
    "lr": mqtune.loguniform(1e-4, 1e-1),
    "momentum": mqtune.reverseloguniform(0.9, 0.999),  # dense near 1
    "dropout": mqtune.uniform(0.0, 0.5),
    "noise": mqtune.normal(0.0, 0.1),
    "rounded_noise": mqtune.qrandn(0.0, 1.0, 0.25),
    "rounded": mqtune.quniform(0.0, 1.0, 0.05),
    "rounded_log": mqtune.qloguniform(1e-3, 1e-1, 1e-3),
    "layers": mqtune.randint(1, 4),  # 4 is included
    "width": mqtune.lograndint(16, 512),
    "batch": mqtune.qrandint(32, 256, 32),
    "buffer": mqtune.qlograndint(64, 4096, 64),
    "optimizer": mqtune.choice(["sgd", {"name": "adam", "beta": mqtune.uniform(0.8, 0.99)}]),
    "size": mqtune.ordinal(["small", "medium", "large"]),
    "steps": mqtune.finrange(0.1, 1.0, 10),
    "decay": mqtune.logfinrange(1e-5, 1e-2, 4),
    "seed": mqtune.grid_search([1, 2]),  # each value, with everything else
    "warmup": mqtune.sample_from(lambda config: config["layers"] * 100),
    "epochs": 9,  # a constant
}
small = mqtune.Space({"lr": mqtune.uniform(0, 1)}, constraint=lambda config: config["lr"] > 0.01)
rows = mqtune.search.Encoding(small).encode([{"lr": 0.5}])  # configs as numbers from 0 to 1, for models

# Searchers, which propose configs.

searchers = [
    mqtune.RandomSearcher(small),  # the default without Optuna
    mqtune.GridSearcher(mqtune.Space({"seed": mqtune.grid_search([1, 2])})),
    mqtune.InitialPoints([{"lr": 0.1}]),  # these configs first
    mqtune.Repeater("seed", "tpe"),  # each config with each seed
    mqtune.WarmStart([({"lr": 0.1}, 0.3)], "tpe"),  # or names of experiments
    "tpe",  # the default with Optuna; "auto" and "ax" are other models, of OptunaHub and Ax
]


class Descending(mqtune.search.Searcher):
    """A searcher of your own."""

    def __init__(self):
        self._left = [0.5, 0.4, 0.3]

    def suggest(self, trial):
        return {"lr": self._left.pop(0)} if self._left else None

    def learn(self, trial: mqtune.search.PastTrial):  # one of another experiment, for WarmStart
        self._left.append(trial.config["lr"])


not_yet = mqtune.search.WAIT  # returned by suggest, to be asked again

# Schedulers.

schedulers = [
    mqtune.FIFO(),  # the default: each trial runs to its end
    mqtune.ASHA(max_t=9),
    mqtune.MOASHA(max_t=9),  # for several metrics
    mqtune.RUSH(max_t=9, candidates=1),
    mqtune.MedianStopping(grace_period=2),
    mqtune.WilcoxonStopping(),  # for reports that are tasks, such as folds
    mqtune.PromotionASHA(max_t=9),  # this one and the next four pause trials
    mqtune.PASHA(max_t=9),
    mqtune.HyperBand(max_t=9),
    mqtune.PBT(3, {"lr": mqtune.uniform(0, 1)}),
    mqtune.schedulers.PBTReplay(
        [mqtune.schedulers.PolicyStep(0, {"lr": 0.1}), mqtune.schedulers.PolicyStep(3, {"lr": 0.01})]
    ),
]


class Halves(mqtune.schedulers.Scheduler):
    """A scheduler of your own: it decides on reports and free slots."""

    def on_report(self, trial, report):
        action = mqtune.schedulers.Action.STOP if report.metrics["loss"] > 0.9 else mqtune.schedulers.Action.CONTINUE
        return mqtune.schedulers.Decision(action, "too high")

    def choose(self, *, can_start):
        return mqtune.schedulers.Start() if can_start else mqtune.schedulers.Wait("all have started")


other_choices = (
    mqtune.schedulers.Resume,
    mqtune.schedulers.Fork,
    mqtune.schedulers.Release,
)  # for paused trials

# Stop rules.

rule = (
    mqtune.schedulers.stopping.MaximumIteration(9)
    | mqtune.TrialPlateau()
    | mqtune.TrialDiverged()
    | mqtune.MetricMaximum("loss", 100.0)
)
rule |= mqtune.TimeLimit(3600) | mqtune.TargetReached(0.001) | mqtune.ExperimentPlateau()
rule |= (
    mqtune.schedulers.stopping.TrialsStarted(40)
    | mqtune.schedulers.stopping.TrialsCompleted(30)
    | mqtune.schedulers.stopping.TrialsFailed(10)
    | mqtune.schedulers.stopping.TrialsEnded(40)
)
rule |= mqtune.schedulers.stopping.ReportsReceived(10_000)


class LostHope(mqtune.schedulers.stopping.StopRule):
    """A rule of your own, which returns a reason."""

    def stops_trial(self, trial, report):
        return "hopeless" if report.metrics["loss"] > 1e6 else ""


# A tuner.


def curve(config):
    """Yield the seconds and the metrics of each report, for a simulation."""
    for epoch in range(1, 10):
        yield 60.0, {"loss": config["lr"] / epoch}  # seconds, and the report


class Diary(mqtune.Callback):
    """A callback, which the driver calls."""

    def on_trial_end(self, trial):
        print(trial.id, trial.status.name)


tuner = mqtune.Tuner(
    train,
    {"lr": mqtune.uniform(0.05, 1)},
    metric=["loss", "loss >= 0"],  # the optimised metric, and a bound on another
    mode="min",
    max_trials=4,
    scheduler=mqtune.ASHA(max_t=9),
    stop=rule,
    resources=mqtune.Resources(cpus=1),
    name="cheat",
    failures=mqtune.Failures(max_failures=3),
    checkpoints=mqtune.Checkpoints(keep_last=1, keep_best=1),
    process=mqtune.Process(working_dir="code"),
    run=mqtune.RunOptions(callbacks=[Diary()], progress=False),
    backend=mqtune.Simulated(curve, slots=2),  # a broker's URL, or mqtune.Local(slots=2)
)
tuner.add({"lr": 0.1})
results = tuner.run()
assert results.best.status is mqtune.TrialStatus.COMPLETED

# Results.

results = mqtune.Results.load("cheat")
print(results.best.config, results.best.value, results.errors)
print(mqtune.schedulers.policy_of(results.events(), results.best.id))  # the configs that a trial was trained with
print(mqtune.results.Replay(results).run(mqtune.MedianStopping()).verdict)  # the result of another scheduler

# From another process.


def steer(broker):
    """Pause and resume a trial, and follow its output."""
    with mqtune.Client(broker) as client:
        trial: mqtune.TrialHandle = client.experiment("cheat").trial("0001")
        trial.pause()
        trial.resume(checkpoint="best")
    for part in mqtune.follow_log("cheat", "0001", broker=broker):
        print(part.decode(), end="")


def load(folder):
    """Turn a folder into a checkpoint."""
    return mqtune.Checkpoint.from_directory(folder)


stores = mqtune.checkpoints.CheckpointStore  # the interface of a store of your own


def in_a_thread():
    """Open a tuner that a thread drives, for a loop that is busy with something else."""
    return mqtune.BackgroundTuner(lambda: mqtune.Tuner(train, backend=mqtune.Simulated(curve)))
