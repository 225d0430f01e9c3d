"""Experiments are deleted or archived, and remains of deleted ones are collected.

Promises: nothing is deleted while a driver has the experiment, or while its submitted script waits or runs. Checkpoints
that an experiment on another server may have stay. An archived experiment is complete in its folder before its server
forgets it, and its next driver restores it. A deletion that was interrupted can be repeated.

It asks ``submissions`` about submitted scripts.

Terms: *garbage* belongs to no experiment. *Orphans* are the keys and messages of experiments that a server has no
more. The *remains* of an experiment are its keys and checkpoints. A *mark* in a store names an experiment with
checkpoints there.
"""
