"""What a zygote leaves comes to its worker, is killed and reaped; and nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

#: A worker with a child of its own, one from before, and a zygote whose descendant has left its group and its environment.
WORKER = """
import json, os, subprocess, sys, time
import mqtune.worker.host.processes as module
from mqtune.worker.host.processes import reaper

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
ZYGOTE = '''
import subprocess, sys, time
left = subprocess.Popen(["sleep", "60"], env={}, start_new_session=True)
print(left.pid, flush=True)
time.sleep(60)
'''

def lives(pid):
    return os.path.exists(f"/proc/{pid}")

before = subprocess.Popen(SLEEP, start_new_session=True)
reaper.adopt()
own = subprocess.Popen(SLEEP)
zygote = reaper.start([sys.executable, "-c", ZYGOTE], os.environ, stdout=subprocess.PIPE)
left = int(zygote.stdout.readline())
reaper.clear(5)
found = {"clear spares": [lives(pid) for pid in (before.pid, own.pid, zygote.pid, left)]}
kill = os.kill
if sys.argv[1] == "held":
    # As one that hangs in the kernel.
    module.os.kill = lambda *_: None
kill(zygote.pid, 9)
zygote.wait()
reaper.kill(zygote, 0)
began = time.monotonic()
found["not gone"] = [pid == left for pid in reaper.clear(0.3 if sys.argv[1] == "held" else 30)]
found["again"] = reaper.clear(30)
found["took"] = time.monotonic() - began
module.os.kill = kill
while lives(left):
    reaper.clear(1)
found["left"] = [lives(pid) for pid in (before.pid, own.pid, zygote.pid)]
found["reaped"] = not [p for p in (zygote.pid, left) if lives(p)]
for process in (before, own):
    process.kill()
    process.wait()
print(json.dumps(found))
"""


@pytest.mark.parametrize("held", [False, True])
def test_what_a_zygote_leaves_is_killed_and_reaped_and_nothing_else_is(held: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER, "held" if held else ""], stdout=subprocess.PIPE, check=True, timeout=60
    )

    found = json.loads(done.stdout)
    assert found["clear spares"] == [True, True, True, True]
    assert found["not gone"] == [True] * held
    # What the kernel holds is not waited for twice.
    assert found["again"] == []
    assert found["took"] < 20
    assert found["left"] == [True, True, False]
    assert found["reaped"]
