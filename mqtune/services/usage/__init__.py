"""The processors, memory and GPUs that attempts use.

Promises: a worker samples what its attempts use, once in each round. Samples go beside the reports, never with them:
each is a key in Redis that expires. The journal gets a few numbers when an attempt ends. No trial, report or lease
waits for a sample. A warning names an attempt that leaves a GPU idle for long.

Terms: a *sample* is the use of an attempt at one moment. A *figure* is a number made of its samples. The *board* has
the last sample of each attempt.
"""
