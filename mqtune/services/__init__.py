"""The services: all features of mqtune around the run of a trial.

Each service is a folder, whose docstring says what it promises. `mqtune/services/worker.py` lists those of a worker,
and `mqtune/services/driver.py` those of a driver, in the order in which their hooks are called. The kernel imports none
of them: a worker or a driver gets the list when it is started. Without its folder and its lines in the list, a feature
is gone and all else works.
"""
