"""Somebody who steers an experiment from a process of their own, and writes down what they were answered."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import mqtune
from mqtune.core.errors import MqtuneError, RequestRefused


def main(broker: str, said: Path, experiment: str, asked: str) -> None:
    """Make the request that *asked* describes, and write down the answer, if there is one in time."""
    request = json.loads(asked)
    line: dict[str, object] = {"id": request["id"]}
    try:
        with mqtune.Client(broker) as client:
            answer = client.experiment(experiment).steer(
                request["action"],
                request["trial"],
                request["arguments"],
                wait_s=request["wait_s"],
                request_id=request["id"],
            )
        if answer.is_done:
            line |= {"done": True, "trial": answer.trial}
    except RequestRefused as error:
        line |= {"done": False, "reason": str(error)}
    except MqtuneError as error:
        line |= {"error": f"{type(error).__name__}: {error}"}
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (json.dumps(line) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
