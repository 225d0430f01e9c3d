"""Code that drivers bring to workers.

Promises: a worker runs only brought code that is signed with a key of its operator, and none without such a key. Each
file is checked against the bundle's hash before anything of it runs. A bundle is fetched and unpacked once in the life
of a worker, and nothing of an earlier worker's is used.

Terms: a *bundle* holds the files of a project, and is named by its hash. A *signature* proves who has brought it. The
*code root* is the folder below which the trainable is.
"""
