"""Messages that nobody but an attacker, or something broken, sends."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def message(
    body: Any, *, task: str = "mqtune.run_trial", task_id: str = "evil/0001/1", queue: str = "q", **headers: Any
) -> str:
    """A message of Celery's, with a JSON body, as it lies in a queue."""
    return _message(json.dumps(body).encode(), "application/json", "utf-8", task, task_id, queue, headers)


def pickled(path: Path, *, queue: str = "q", task: str = "mqtune.run_trial") -> str:
    """The same with a pickle that makes a file."""
    body = pickle.dumps(((Touch(path),), {}, {}))
    return _message(body, "application/x-python-serialize", "binary", task, "evil/0001/1", queue, {})


def _message(
    body: bytes, kind: str, encoding: str, task: str, task_id: str, queue: str, headers: dict[str, Any]
) -> str:
    return json.dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": encoding,
            "content-type": kind,
            "headers": {
                "lang": "py",
                "task": task,
                "id": task_id,
                "root_id": task_id,
                "parent_id": None,
                "group": None,
                "retries": 0,
                "eta": None,
                "expires": None,
                "ignore_result": True,
                "argsrepr": "",
                "kwargsrepr": "",
                "origin": "evil",
                **headers,
            },
            "properties": {
                "correlation_id": task_id,
                "reply_to": "",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": "tag",
            },
        }
    )


def remote(method: str, *, kind: str = "application/json", body: bytes | None = None, **arguments: Any) -> str:
    """A remote command of Celery's, as it is published."""
    said = {"method": method, "arguments": arguments, "destination": None, "pattern": None, "matcher": None}
    return json.dumps(
        {
            "body": base64.b64encode(json.dumps(said).encode() if body is None else body).decode(),
            "content-encoding": "utf-8" if body is None else "binary",
            "content-type": kind,
            "headers": {"clock": 1, "expires": 2e10},
            "properties": {
                "delivery_mode": 2,
                "delivery_info": {"exchange": "mqtune.pidbox", "routing_key": ""},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": "tag",
            },
        }
    )
