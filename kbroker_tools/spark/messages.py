"""The errors of a query that Spark shows without a traceback, and the check that the Python of the workers has all
packages."""
from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from kbroker.base.errors import ConfigError, KafkaError
from kbroker.client.errors import ClientError

WORKER = 'PYTHON_WORKER_FACTORY_'
"""The beginning of the names of the environment variables that Spark sets for its Python workers."""
HIDE_TRACEBACK = 'SPARK_HIDE_TRACEBACK'


class ColumnError(ValueError):
    """A schema has an unknown column or a column with a wrong type."""


class TimestampError(ValueError):
    """A record has a timestamp that does not fit the timestamp type of Spark."""


class MissingPackageError(Exception):
    """The Python of Spark's workers lacks a package."""


EXPLAINED = (ConfigError, ColumnError, TimestampError, MissingPackageError, KafkaError, ClientError)
"""The errors whose message says what was found and expected. They are caused by the user, a broker or the network."""


@contextmanager
def message_first(*more: type[Exception]) -> Iterator[None]:
    """Make PySpark show only the message, without the traceback, if the block raises an `EXPLAINED` error or one of
    `more`.

    PySpark decides this by an environment variable of the worker process. A worker process ends with its first error,
    so the variable affects no other error. In any other process, this function does nothing.
    """
    kinds: tuple[type[Exception], ...] = (*EXPLAINED, *more)
    try:
        yield
    except kinds:
        if any(name.startswith(WORKER) for name in os.environ):
            os.environ[HIDE_TRACEBACK] = '1'
        raise


def require_arrow() -> None:
    """Raise MissingPackageError if this Python lacks pyarrow. PySpark needs pyarrow for every data source in Python."""
    if find_spec('pyarrow') is None:
        raise MissingPackageError("the Python of Spark's workers has no pyarrow; install it with: "
                                  f"{sys.executable} -m pip install 'kbroker[spark]'")
