"""Each attempt runs in a working folder of its own, in which relative reads find the program's files.

Promises: what an attempt writes by a relative path is its own, and the program's files stay as they are. New files are
kept beside the attempt's output, for all attempts, for failed ones or for none (``keep_working_dir``). What a killed
worker has left is put there by the next one.

Terms: a *place* holds the working folder of one process. The attempt's *working directory* is the path that users know;
while the attempt runs, it is a link to the working folder.
"""
