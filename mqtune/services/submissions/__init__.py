"""Workers run scripts that users submit, as drivers, while the users are away.

Promises: one worker at a time runs a submitted script. A script whose worker is gone, or ends, runs again on another
worker, until it has ended or a person stops it. Scripts that are lost several times in a row, soon after their begin,
are given up. A worker runs only scripts that are signed with its key. A script ends with its worker.

Terms: a *submission* is a signed description of a script, the bundle of its code, and a state. A *run* is one process
of it. A *driver slot* of a worker runs one script at a time. A submission is *due* while it waits, and once its worker
has not renewed it in time.
"""
