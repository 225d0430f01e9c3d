"""Each attempt runs in its own working folder. Relative reads find the program's files.

Promises: files that an attempt writes by relative paths are its own, and the program's files stay the same. New files
are kept beside the attempt's output, for all attempts, for failed ones or for none (``keep_working_dir``). If a worker
is killed, the next worker there keeps the new files of its attempts.

Terms: a *place* holds the working folder of one process. The attempt's *working directory* is the path that users know;
while the attempt runs, it is a link to the working folder.

Other places: `mqtune/driver/setup/options.py` (`keep_working_dir`), `mqtune/cli/gc.py`, `docs/processes.md`,
`tests/services/folders`.
"""
