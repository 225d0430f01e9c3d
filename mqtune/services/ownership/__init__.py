"""Roles of accounts on a shared server, and protection of other people's property.

Promises: an account may do only what its role needs, on its experiments. Without force or an operator's account, a
command on another's experiment, script or worker is refused. Each use of force and each change of the fleet or its
quotas is recorded in the audit stream before it is carried out.

Terms: a *role* is a driver, worker, operator or monitor. A *rule* allows an account some commands on some keys and
channels. The *audit stream* is a stream in Redis with names and times.

Other places: `mqtune/client.py`, `mqtune/cli/acl.py` (`mqtune fleet acl`), `mqtune/cli/events.py`,
`mqtune/cli/owners.py`, `mqtune/cli/quota.py`, `mqtune/cli/drain.py`, `mqtune/cli/submit.py`, `deploy/accounts.sh`,
`docs/security.md`, `tests/services/ownership`.
"""
