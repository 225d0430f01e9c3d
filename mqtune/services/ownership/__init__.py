"""Accounts of a shared server have roles, and nobody acts on another's property by accident.

Promises: an account may do what its role needs, on its experiments, and nothing else. Without force or an operator's
account, a command about another's experiment, script or worker is refused. Each use of force and each change of the
fleet or its quotas is in the audit stream, before it is carried out.

Terms: a *role* is a driver, worker, operator or monitor. A *rule* allows an account some commands on some keys and
channels. The *audit stream* is a stream in Redis with names and times.
"""
