"""The sink of `format("kbroker")`. Each micro-batch or job becomes visible exactly once.

The sink works in three steps:

    plan     the driver, before the tasks     fences older drivers, reads the last decisions from the ledger, and ends
                                              the transactions that older drivers have left open
    task     each attempt on an executor      stages its rows in its commit message, or writes them in its own
                                              transaction, which it leaves open
    commit   the driver, after the tasks      writes staged rows and a row of the ledger in one transaction, then
                                              commits the transactions of the tasks

The commit of the driver's transaction is the decision. A transaction of a task is committed only if a decision names
it. No row of a repeated task, a losing attempt or a dead driver can therefore become visible.
"""
