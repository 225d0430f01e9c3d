"""A tiny BERT with Hugging Face's trainer, whose checkpoints go into its default output folder; the best one is loaded at the end."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import mqtune

ROWS = [
    {"input_ids": torch.tensor([number % 20, number % 7]), "labels": torch.tensor(number % 2)} for number in range(32)
]
SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def train(config):
    set_seed(7)
    arguments = TrainingArguments(
        learning_rate=config["lr"],
        num_train_epochs=2,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=7,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(BertConfig(**SIZES)), args=arguments, train_dataset=ROWS, eval_dataset=ROWS
    )
    trainer.train()
    mqtune.report({"loss": round(trainer.evaluate()["eval_loss"], 5)})


if __name__ == "__main__":
    space = {"lr": mqtune.grid_search([1e-4, 1e-3, 1e-2, 1e-1])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="trainer-real").run()
