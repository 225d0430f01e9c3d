"""Workers run submitted scripts as drivers, while their users are away.

Promises: one worker at a time runs a submitted script. If its worker is gone or ends, the script runs again on another
worker, until it has ended or a user stops it. A script that is lost several times in a row, soon after its begin, is
given up. A worker runs only scripts signed with its key. A script ends with its worker.

Terms: a *submission* is a signed description of a script, the bundle of its code, and a state. A *run* is one process
of it. A *driver slot* of a worker runs one script at a time. A submission is *due* while it waits, and when its worker
has not renewed it in time. Its *queue entry* is the time from which on it is due.

A submission is neither a trial nor an experiment. As a trial, it would need a second driver with a second lock. As an
entry of its experiment's journal, it could not report a failure before that experiment exists.

Other places: `mqtune/client.py`, `mqtune/cli/submit.py` (`mqtune submit`),
`mqtune/cli/list.py`, `mqtune/cli/steer.py`, `mqtune/cli/why.py`, `mqtune/results/experiments.py`,
`mqtune/results/logs.py`, `deploy/kubernetes/drivers.yaml`, `docs/how-to/submit.md`, `tests/services/submissions`.
"""
