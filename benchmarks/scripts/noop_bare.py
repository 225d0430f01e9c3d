"""A Syne Tune trial that imports nothing: it prints one report in the form that the backend looks for."""

print('[tune-metric]: {"loss": 0.0, "epoch": 1, "st_worker_timestamp": 0.0}')
