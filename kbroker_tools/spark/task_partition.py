"""The work of one task, in the form in which Spark sends it to an executor."""
from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import InputPartition


class TaskPartition(InputPartition):
    """The work of one task. Spark sends it to an executor."""

    def __init__(self, task: Any):
        super().__init__(task)
