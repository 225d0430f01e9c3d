"""The sources of a worker's tasks: Celery's queues, or the queue of a driver on this machine."""
