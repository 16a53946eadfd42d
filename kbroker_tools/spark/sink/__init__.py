"""The sink of `format("kbroker")`: a micro-batch or a job becomes one transaction, exactly once.

    plan     the driver, before the tasks     fences older drivers, and reads the last decisions from the ledger
    task     each attempt on an executor      stages its rows in its commit message; it writes nothing to the broker
    commit   the driver, after the tasks      writes the rows and a row of the ledger in one transaction

The commit of that transaction is the decision. A repeated task, a losing attempt and a dead driver leave nothing behind
in the topic, because only `commit` writes to it.
"""
