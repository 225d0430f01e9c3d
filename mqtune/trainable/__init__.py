"""Trainables and the processes that run them: nothing here imports celery, redis or numpy."""
