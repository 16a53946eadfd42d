"""Errors of a query that Spark reports by their messages alone, and the check for packages that the workers' Python
lacks."""
from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from kbroker.base.errors import ConfigError, KafkaError
from kbroker.client.errors import ClientError

WORKER = 'PYTHON_WORKER_FACTORY_'
"""The first part of the names of variables that Spark gives the environment of its Python workers."""
HIDE_TRACEBACK = 'SPARK_HIDE_TRACEBACK'


class ColumnError(ValueError):
    """A schema has an unknown column, or a column of another type."""


class TimestampError(ValueError):
    """A record has a timestamp that a column of Spark cannot hold."""


class MissingPackageError(Exception):
    """The Python of Spark's workers lacks a package."""


EXPLAINED = (ConfigError, ColumnError, TimestampError, MissingPackageError, KafkaError, ClientError)
"""Errors that say what was found and expected. Their cause is the user, a broker or the network."""


@contextmanager
def message_first(*more: type[Exception]) -> Iterator[None]:
    """Make PySpark omit the traceback, which it prints above the message, of an `EXPLAINED` error or one of `more`.

    PySpark reads the variable from the environment of the worker. A worker process ends with its first error, so the
    variable affects no other error. In a process that is no worker, this does nothing.
    """
    kinds: tuple[type[Exception], ...] = (*EXPLAINED, *more)
    try:
        yield
    except kinds:
        if any(name.startswith(WORKER) for name in os.environ):
            os.environ[HIDE_TRACEBACK] = '1'
        raise


def require_arrow() -> None:
    """Raise MissingPackageError if this Python has no pyarrow, which PySpark needs for every Python source."""
    if find_spec('pyarrow') is None:
        raise MissingPackageError("the Python of Spark's workers has no pyarrow; install it with: "
                                  f"{sys.executable} -m pip install 'kbroker[spark]'")
