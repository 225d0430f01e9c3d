"""Train a small transformer with the Trainer of Hugging Face.

Its first weights are random, so nothing is downloaded.

Run it: python examples/train_transformers.py, with --gpus 1 if each trial is to have a GPU. On the workers of a broker
($MQTUNE_BROKER), name a folder that all machines share: --checkpoints /shared/checkpoints
"""

import argparse

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import mqtune
from mqtune.integrations.transformers import MqtuneCallback


def train(config):
    """Train from scratch or from a checkpoint. The callback reports and saves after each epoch."""
    images, digits = load_digits(return_X_y=True)
    pixels = torch.tensor(images / 16).float().reshape(-1, 1, 8, 8)
    data = [{"pixel_values": x, "labels": int(y)} for x, y in zip(pixels, digits, strict=True)]
    callback = MqtuneCallback({"accuracy": "eval_accuracy"}, checkpoint_every=1)
    arguments = TrainingArguments(
        output_dir=str(mqtune.get_context().folder / "output"),
        num_train_epochs=9,
        learning_rate=config["lr"],
        weight_decay=config["decay"],
        per_device_train_batch_size=32,
        eval_strategy="epoch",
        save_strategy="no",  # the callback has it save
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
    )
    shape = {"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10}
    size = {"hidden_size": config["width"], "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    trainer = Trainer(
        ViTForImageClassification(ViTConfig(**shape, **size)),
        arguments,
        train_dataset=data[:1347],
        eval_dataset=data[1347:],
        compute_metrics=lambda guessed: {"accuracy": (guessed.predictions.argmax(1) == guessed.label_ids).mean()},
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=callback.checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=float, default=0, help="of each trial: 0.5, 1, 2 …")
    parser.add_argument("--checkpoints", help="where to keep them: a folder, or a URL such as s3://bucket/folder")
    parser.add_argument("--trials", type=int, default=6)
    asked = parser.parse_args()
    space = {"lr": mqtune.loguniform(1e-4, 0.1), "decay": mqtune.uniform(0, 0.1), "width": mqtune.choice([16, 32])}
    results = mqtune.Tuner(
        train, space, metric="accuracy", mode="max", scheduler=mqtune.ASHA(max_t=9), max_trials=asked.trials, seed=1,
        resources=mqtune.Resources(gpus=asked.gpus), checkpoints=mqtune.Checkpoints(asked.checkpoints),
        name="transformers",
    ).run()  # fmt: skip
    print(f"best trial {results.best.id}: accuracy {results.best.value:.3f} with {results.best.config}")
