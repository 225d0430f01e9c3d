"""Modules that trials import late are imported once, before trials are forked.

Promises: the first trials of a trainable show which modules it imports only while it runs, and later trials find these
imported. A module is imported early only in the surroundings in which a trial has imported it. A package behind which
no process can be forked safely is left to the trials. A worker that starts again knows all this.

Terms: a *late import* happens in a trial, after its fork. A *batch* has modules, and the changes that the trial had
made to its environment before it imported them.
"""
