"""Each attempt runs in a working folder of its own, in which relative reads find the program's files.

Promises: files that an attempt writes by relative paths are its own, and the program's files stay the same. New files
are kept beside the attempt's output, for all attempts, for failed ones or for none (``keep_working_dir``). The next
worker puts those of a killed one there.

Terms: a *place* holds the working folder of one process. The attempt's *working directory* is the path that users know;
while the attempt runs, it is a link to the working folder.

Other places: `mqtune/driver/setup/options.py` (`keep_working_dir`), `mqtune/cli/gc.py`, `docs/processes.md`,
`tests/services/folders`.
"""
