"""Messages of a webhook, to a real server over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.integrations import webhook
from mqtune.integrations.webhook import Webhook

#: The answer that is none.
NO_HTTP = 0


class Chat(HTTPServer):
    """Takes messages, and answers with the codes that it is given, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.texts: list[str] = []
        self.answers: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/secret"


class Taking(BaseHTTPRequestHandler):
    server: Chat

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code = self.server.answers.pop(0) if self.server.answers else 200
        if code == 200:
            self.server.texts.append(body["text"])
        if code == NO_HTTP:
            self.wfile.write(b"\x1b[2J" + self.path.encode() + b"\r\n\r\n")
            return
        self.send_response(code, f"\x1b[31m no {self.path}")
        if code == 302:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.texts.append(f"GET {self.path}")
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    monkeypatch.setattr(webhook, "_WAITS_S", (0.0, 0.0))
    with Chat() as chat:
        thread = threading.Thread(target=chat.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield chat
        chat.shutdown()
        thread.join()


def objective(config: dict[str, Any]) -> None:
    """Never run: its workers are simulated."""


def curve(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, float] | Exception]]:
    yield 1.0, {"loss": config["x"]}
    if config["x"] > 1:
        yield 1.0, RuntimeError("bad luck, <!channel>")


def run(callback: Webhook, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path))
    mqtune.Tuner(
        objective,
        {"x": mqtune.grid_search([0.5, 2.0, 3.0, 4.0, 5.0])},
        metric="loss",
        mode="min",
        name="mine",
        backend=mqtune.Simulated(curve, slots=1),
        run=mqtune.RunOptions(progress=False, callbacks=[callback]),
    ).run()


def test_the_first_failed_trials_and_the_end_are_told(
    chat: Chat, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(Webhook(chat.url), tmp_path, monkeypatch)

    *failures, end = chat.texts
    assert [text.partition(" failed: ")[0] for text in failures] == [
        "mine: trial 0002",
        "mine: trial 0003",
        "mine: trial 0004",
    ]
    assert "bad luck, &lt;!channel&gt;" in failures[0]
    assert end == "mine: finished · 5 trials: 1 completed, 4 failed · best loss=0.5 in trial 0001: x=0.5"


def test_failures_need_not_be_told(chat: Chat, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run(Webhook(chat.url, failures=False), tmp_path, monkeypatch)

    assert len(chat.texts) == 1


def test_a_message_is_tried_again_while_the_server_is_busy(
    chat: Chat, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.answers = [503, 429]

    run(Webhook(chat.url, failures=False), tmp_path, monkeypatch)

    assert len(chat.texts) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (404, "answered 404 Not Found"),
        (302, "answered 302 Found"),
        (599, "answered 599"),
        (NO_HTTP, "answered no HTTP (BadStatusLine)"),
    ],
)
def test_a_refusal_is_said_without_the_address_and_the_experiment_has_ended(
    chat: Chat, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: int, said: str
) -> None:
    chat.answers = [answer] * 9

    run(Webhook(chat.url, failures=False), tmp_path, monkeypatch)

    assert f"the webhook at 127.0.0.1 {said}" in caplog.text
    assert "secret" not in caplog.text
    assert "\x1b" not in caplog.text
    assert chat.texts == []
    assert mqtune.Results.load("mine").outcome == "finished"


def test_a_server_that_is_not_there_is_said_without_the_address(
    chat: Chat, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(Webhook("http://127.0.0.1:9/services/secret", failures=False), tmp_path, monkeypatch)

    assert "the webhook at 127.0.0.1 can't be reached: " in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    "url",
    ["https://h/T0/a b", "https://h/T0\t", "https://h/T0/\x1b", "https://h:T0/x", "https://[T0/x", "https://h/T0ü"],
)
def test_an_address_that_can_not_be_one_is_refused_at_once_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^Webhook: the address") as refused:
        Webhook(url)

    assert "T0" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize("url", ["file:///etc/passwd", "hooks.example.com/x", "https://"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError, match="must begin with https://"):
        Webhook(url)
