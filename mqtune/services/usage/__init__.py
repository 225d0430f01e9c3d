"""What attempts use of their machines: processors, memory and GPUs.

Promises: a worker samples what its attempts use, once in each round. Samples go beside the reports, never with them:
each is a key in Redis that expires. The journal gets a few numbers when an attempt ends. No trial, report or lease
waits for a sample. A warning names an attempt that leaves a GPU idle for long.

Terms: a *sample* is what an attempt uses at one moment. A *figure* is a number that comes of its samples. The *board*
is where workers write the last sample.
"""
