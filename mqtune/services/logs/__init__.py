"""The output of trials and scripts, read from anywhere.

Promises: with read access to an experiment one can read the output of its attempts, also while they run, and without
access to the workers' machines. A worker sends output of attempts that ran on it, and nothing else. A disk that hangs
delays nothing but the answer.

Terms: a *question* names an attempt, one of its two streams and a place in it. A *chunk* is the answer's bytes.
"""
