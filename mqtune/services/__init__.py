"""The services: what mqtune can do besides running one trial from its begin to its end.

Each service is a folder, whose docstring says what it promises. `mqtune/services/worker.py` lists those of a worker,
and `mqtune/services/driver.py` those of a driver, in the order in which their hooks are called. The kernel imports none
of them: whoever starts a worker or a driver gives it the list. Without its folder and its lines there, a feature is
gone and all else works.
"""
