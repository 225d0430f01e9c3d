"""Functions that train with one library each, as its users write them, and that import it inside, as a process of many trials allows."""

from __future__ import annotations

from typing import Any

import mqtune

Config = dict[str, Any]


def torch(config: Config) -> None:
    """Train with a data loader's processes, and with settings of its own that are not those of the next trial."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    mine = [str(torch.get_default_dtype()), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()]
    torch.set_num_threads(1 if mine[-1] > 1 else 2)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    x = torch.linspace(0, 1, 32).unsqueeze(1)
    net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    for _ in range(2):
        for part, target in DataLoader(TensorDataset(x, 2 * x), batch_size=8, num_workers=2):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(part), target)
            loss.backward()
            optimizer.step()
        mqtune.report({"loss": loss.item(), "settings": repr(mine)})


def lightning(config: Config) -> None:
    """Train with a progress bar, a seed for all generators, and a log in the trial's own folder."""
    import torch
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.loggers import CSVLogger

    from mqtune.integrations.lightning import MqtuneCallback

    class Line(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            x, y = batch
            loss = torch.nn.functional.mse_loss(self.layer(x), y)
            self.log("train_loss", loss, on_epoch=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), config["lr"])

    seed_everything(int(1000 * config["lr"]), verbose=False)
    x = torch.linspace(0, 1, 32).unsqueeze(1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x), batch_size=8)
    folder = mqtune.get_context().folder
    trainer = Trainer(
        max_epochs=2,
        callbacks=[MqtuneCallback({"loss": "train_loss"}, checkpoint_every=1)],
        accelerator="cpu",
        logger=CSVLogger(folder),
        default_root_dir=folder,
        log_every_n_steps=1,
        deterministic=True,
    )
    trainer.fit(Line(), data)


def transformers(config: Config) -> None:
    """Train a transformer with weights made at random, and with tqdm's progress bars, whose monitor is a thread."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from mqtune.integrations.transformers import MqtuneCallback

    data = [{"input_ids": (ids := torch.arange(i, i + 8) % 16), "labels": ids} for i in range(8)]
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    )
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(mqtune.get_context().folder / "output"),
            learning_rate=config["lr"],
            num_train_epochs=2,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=data,
        eval_dataset=data,
        callbacks=[MqtuneCallback({"loss": "eval_loss"}, checkpoint_every=1)],
    )
    trainer.train()


def keras(config: Config) -> None:
    """Train in another type and with another seed than the next trial."""
    import keras
    import numpy as np

    from mqtune.integrations.keras import MqtuneCallback

    policy = keras.config.dtype_policy().name
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(int(1000 * config["lr"]))
    x = np.linspace(0, 1, 32).reshape(-1, 1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(config["lr"]), loss="mse")
    model.fit(x, 2 * x, epochs=2, validation_data=(x, 2 * x), callbacks=[MqtuneCallback({"loss": "val_loss"})])
    mqtune.report({"loss": 0.0, "settings": policy})


def sklearn(config: Config) -> None:
    """Train with OpenMP, with threads of joblib, and with settings that are not those of the next trial."""
    import numpy as np
    from sklearn import get_config, set_config
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.neural_network import MLPRegressor

    mine = repr([get_config()["assume_finite"], np.geterr()["over"]])
    set_config(assume_finite=True)
    np.seterr(all="ignore")
    x = np.linspace(0, 1, 64).reshape(-1, 1)
    y = 2 * x[:, 0]
    boosted = HistGradientBoostingRegressor(learning_rate=config["lr"], max_iter=5).fit(x, y)
    mqtune.report({"loss": 1 - boosted.score(x, y), "settings": mine})
    forest = RandomForestRegressor(5, n_jobs=2).fit(x, y)
    mqtune.report({"loss": 1 - forest.score(x, y), "settings": mine})
    network = MLPRegressor(hidden_layer_sizes=(8,), learning_rate_init=config["lr"])
    for _ in range(2):
        network.partial_fit(x, y)
        mqtune.report({"loss": 1 - network.score(x, y), "settings": mine})


def xgboost(config: Config) -> None:
    """Train with a verbosity that is not that of the next trial."""
    import numpy as np
    import xgboost

    from mqtune.integrations.xgboost import MqtuneCallback

    verbosity = xgboost.get_config()["verbosity"]
    xgboost.set_config(verbosity=0)
    x = np.linspace(0, 1, 64).reshape(-1, 1)
    data = xgboost.DMatrix(x, 2 * x)
    callback = MqtuneCallback({"loss": "valid-rmse"}, checkpoint_every=1)
    xgboost.train({"eta": config["lr"]}, data, 3, evals=[(data, "valid")], callbacks=[callback])
    mqtune.report({"loss": 0.0, "settings": repr(verbosity)})


def lightgbm(config: Config) -> None:
    """Train with as many threads as it likes."""
    import lightgbm
    import numpy as np

    from mqtune.integrations.lightgbm import MqtuneCallback

    x = np.linspace(0, 1, 64).reshape(-1, 1)
    lightgbm.train(
        {"objective": "l2", "learning_rate": config["lr"], "verbose": -1},
        lightgbm.Dataset(x, 2 * x[:, 0]),
        3,
        valid_sets=[lightgbm.Dataset(x, 2 * x[:, 0])],
        valid_names=["valid"],
        callbacks=[MqtuneCallback({"loss": "valid-l2"}, checkpoint_every=1)],
    )
