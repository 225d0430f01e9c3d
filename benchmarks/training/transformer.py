"""A small transformer by Hugging Face's Trainer: weights and sequences are drawn at random, nothing is fetched."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from benchmarks.training.epochs import Config, Epochs

SEQUENCES = 64
LENGTH = 16
WORDS = 32

sequences = torch.randint(WORDS, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(0))
data = [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.sum() % 2} for ids in sequences]


class Reporting(TrainerCallback):
    def __init__(self, epochs: Epochs) -> None:
        self.epochs = epochs

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epochs.begin()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            self.epochs.end(float(logs["loss"]))


def train(config: Config, epochs: Epochs) -> None:
    torch.manual_seed(config["seed"])
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=config["width"],
            max_position_embeddings=LENGTH,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=config["epochs"],
            per_device_train_batch_size=16,
            learning_rate=config["lr"] / 100,
            logging_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=config["seed"],
        )
        Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Reporting(epochs)]).train()
