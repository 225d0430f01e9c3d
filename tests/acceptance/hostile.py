"""Messages that nobody but an attacker, or something broken, sends."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def message(
    body: Any,
    *,
    kind: str = "application/json",
    task: str = "mqtune.run_trial",
    task_id: str = "evil/0001/1",
    queue: str = "q",
    **headers: Any,
) -> str:
    """A message of Celery's as it lies in a queue: its body is JSON unless it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    none = dict.fromkeys(("parent_id", "group", "eta", "expires"))
    known = {"lang": "py", "task": task, "id": task_id, "root_id": task_id, "retries": 0, "ignore_result": True}
    return json.dumps(
        {
            "body": base64.b64encode(data).decode(),
            "content-encoding": "binary" if isinstance(body, bytes) else "utf-8",
            "content-type": kind,
            "headers": {**none, **known, "argsrepr": "", "kwargsrepr": "", "origin": "evil", **headers},
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


def pickled(path: Path, **more: Any) -> str:
    """The same with a pickle that makes a file."""
    return message(pickle.dumps(((Touch(path),), {}, {})), kind="application/x-python-serialize", **more)


def remote(method: str, *, kind: str = "application/json", body: bytes | None = None, **arguments: Any) -> str:
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
