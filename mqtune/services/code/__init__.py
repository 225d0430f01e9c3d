"""Code that drivers bring to workers.

Promises: a worker runs code that a driver sends only if it is signed with its operator's key. Without a key it runs
none. Each file is checked against the bundle's hash before it runs. A worker fetches and unpacks a bundle once, and
reuses nothing of an earlier worker.

Terms: a *bundle* has the files of a project, and is named by its hash. A *signature* proves its sender. The *code root*
is a folder above the trainable.

Other places: `mqtune/driver/setup/bundling.py`, `mqtune/driver/setup/options.py` (`Process(bundle=…)`),
`mqtune/worker/loop/settings.py` (the key), `mqtune/cli/submit.py`,
`docs/security.md`, `tests/services/code`.
"""
