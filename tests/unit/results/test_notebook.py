"""A notebook in a real kernel: the live table, what stands at the end of a cell, and the interrupt button."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# They bring 50 MB of what nothing else here needs.
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FILE = """%%writefile train.py
def train(config):
    for epoch in range(1, 200_000):
        yield 60.0, {"loss": config["lr"] / epoch}
        if epoch == config["epochs"]:
            break
"""
TUNE = """
import mqtune
from train import train
space = {"lr": mqtune.uniform(0, 1), "epochs": EPOCHS}
results = mqtune.Tuner(
    train, space, metric="loss", mode="min", max_trials=12, name="NAME", backend=mqtune.Simulated(train)
).run()
"""
#: A function and a class of this notebook, and what they use of it, on real workers of this machine.
MINE = """
import math
from train import train as of_a_file
START, model = 3, object()
def start(config): return START + math.floor(config["lr"])
class Model(mqtune.Trainable):
    def setup(self, config): self.value = start(config)
    def step(self): return {"loss": self.value, "done": True}
def mine(config): return start(config) + len(open("data.txt").read())
"""
RUN = """
print([mqtune.Tuner(each, space, metric="loss", mode="min", backend=mqtune.Local(slots=1)).run().best.value for each in (mine, Model)])
"""
CANT = "def uses(config): return model\nmqtune.Tuner(uses, space, metric='loss', mode='min', backend='redis://localhost:1/0')"
INTERRUPT = "import _thread, os, signal, threading; threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()"


@pytest.mark.filterwarnings("ignore")
def test_a_notebook_tunes_shows_and_can_be_interrupted(tmp_path: Path):
    cells = [
        FILE,
        TUNE.replace("EPOCHS", "3").replace("NAME", "quick"),
        "results",
        "results.plot.curves()",
        f"{INTERRUPT}\n{TUNE.replace('EPOCHS', '100_000').replace('NAME', 'long')}",
        "print(results.outcome)",
        MINE,
        RUN,
        CANT,
    ]
    (tmp_path / "data.txt").touch()
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])

    nbclient.NotebookClient(
        book, timeout=60, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    def outputs(cell: int) -> list[dict[str, Any]]:
        return book.cells[cell].outputs

    # A line says who decides; the live table is one output, which was drawn over.
    who_decides, live = (output for output in outputs(1) if output.output_type == "display_data")
    assert "quick · searcher " in who_decides.data["text/html"]
    assert "12/12 trials: 12 completed" in live.data["text/html"]
    assert "<svg" in live.data["text/html"]
    assert "12 trials: 12 completed" in outputs(2)[0].data["text/html"]
    assert {"image/png", "application/vnd.plotly.v1+json"} <= {*outputs(3)[0].data}
    assert outputs(5)[0].text == "interrupted\n"
    assert [output.text for output in outputs(7) if output.get("name") == "stdout"] == ["[3, 3]\n"]
    assert "model, an object, which is not a plain value" in outputs(8)[0].evalue
    assert "%%writefile" in outputs(8)[0].evalue
