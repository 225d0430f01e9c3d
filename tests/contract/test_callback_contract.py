"""The contract of callbacks, on mqtune's own."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mqtune.integrations.tensorboard import TensorBoard
from mqtune.results.callbacks import ErrorLog
from mqtune.results.display import ProgressDisplay
from mqtune.testing.callbacks import CallbackContract, NewCallback


class TestErrorLog(CallbackContract):
    @pytest.fixture
    def new_callback(self) -> NewCallback:
        return ErrorLog


class TestTensorBoard(CallbackContract):
    @pytest.fixture
    def new_callback(self) -> NewCallback:
        return TensorBoard


class TestProgress(CallbackContract):
    @pytest.fixture
    def new_callback(self) -> NewCallback:
        return lambda folder: ProgressDisplay(
            total=lambda: 8, folder=folder, console=Console(file=io.StringIO(), force_terminal=True, width=90)
        )
