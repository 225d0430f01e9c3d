"""What runs inside a trial process; nothing here imports celery or redis."""
