"""The count of the transactional ids that the tasks of a prefix have used. A broker keeps each id for
transactional.id.expiration.ms."""
from __future__ import annotations

import logging

from kbroker_tools.spark.sink.coordinator import TaskTransactions
from kbroker_tools.spark.sink.values import Commit, Plan, tasks_of

MANY = 100_000
COUNTED_EVERY = 100
"""The ids are counted once in this many micro-batches. Counting 20,000 ids takes a tenth of a second."""

logger = logging.getLogger(__name__)


def warn_of_many_ids(transactions: TaskTransactions, plan: Plan) -> None:
    """Log a warning if the broker keeps more than MANY transactional ids of this prefix's tasks. Raise KafkaError or
    ClientError if they cannot be listed."""
    if plan.commit is Commit.DRIVER or max(plan.decided.values(), default=0) % COUNTED_EVERY:
        return
    count = len(transactions.ids(tasks_of(plan.prefix)))
    if count > MANY:
        logger.warning('the broker keeps %d transactional ids of the tasks of %s, about 430 bytes each: use fewer '
                       'tasks, commit=driver or commit=auto, or lower transactional.id.expiration.ms of the broker',
                       count, plan.prefix)
