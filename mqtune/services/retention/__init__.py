"""The oldest entries of a journal leave its server, and stay in the experiment's store.

Promises: nothing leaves the server that the store and the driver's copy do not have, or that the driver has not read.
A reader finds the whole journal, in its order, also while entries move.

Terms: a *chapter* is a file in the experiment's store with the oldest entries of its journal, which Redis has no more.
To *trim* is to record a chapter and remove its entries from Redis.
"""
