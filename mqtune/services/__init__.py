"""The services: all features of mqtune around the run of a trial.

Each service is a folder whose docstring lists its promises. `mqtune/services/worker.py` lists a worker's services, and
`mqtune/services/driver.py` a driver's, in the order of their hook calls. `mqtune/services/settings.py` lists an
operator's settings for them. The kernel imports none of them: a worker or
driver gets the list at its start. The run of a trial needs no other edit to add or remove a service.

Commands, options, deploy files, tests and pages are further places. A service's docstring names those outside its
folder. CONTRIBUTING.md has the list of steps.
"""
