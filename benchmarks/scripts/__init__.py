"""Files that other programs run: Syne Tune's trials and a Celery worker's app."""
