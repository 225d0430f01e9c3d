"""The processors, memory and GPUs that attempts use.

Promises: a worker samples its attempts' resource use once in each round. Samples are stored beside the reports: each is
an expiring key in Redis. The journal gets a few numbers at an attempt's end. No trial, report or lease waits for a
sample. A warning names an attempt that leaves a GPU idle for long.

Terms: a *sample* is the current use of an attempt. A *figure* is a number made of its samples. The *board* has the last
sample of each attempt.

Other places: `mqtune/core/usage.py`, `mqtune/cli/machine_use.py`, `mqtune/cli/usage_report.py`, `docs/results.md`,
`tests/services/usage`.
"""
