"""The output of trials and scripts, readable from anywhere.

Promises: read access to an experiment suffices to read the output of its attempts, even while they run, without access
to the workers' machines. A worker sends only output of attempts that ran on it. A hanging disk delays only the answer.

Terms: a *question* names an attempt, one of its two streams and a place in it. A *chunk* is the answer's bytes.

Other places: `mqtune/journal/exchange/logs.py`, `mqtune/cli/logs.py` (`mqtune logs`), `docs/cli.md`,
`tests/services/logs`.
"""
