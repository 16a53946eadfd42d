"""The sink of `format("kbroker")`: a micro-batch or a job becomes visible exactly once.

    plan     the driver, before the tasks     fences older drivers, reads the last decisions from the ledger, and ends
                                              the transactions that older drivers have left open
    task     each attempt on an executor      stages its rows in its commit message, or writes them in a transaction of
                                              its own, which it leaves open
    commit   the driver, after the tasks      writes staged rows and a row of the ledger in one transaction, then
                                              commits the transactions of the tasks

The commit of the driver's transaction is the decision. Nothing of a repeated task, a losing attempt or a dead driver
becomes visible, because only a decision names the transactions to commit.
"""
