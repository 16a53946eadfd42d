"""The errors of a query that Spark shows without a traceback, the warnings of its Python workers, and the check that
their Python has all packages.
"""
from __future__ import annotations

import logging
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
    """The Python of Spark's workers lacks a package, or has a version that is too old."""


EXPLAINED = (ConfigError, ColumnError, TimestampError, MissingPackageError, KafkaError, ClientError)
"""The errors whose message says what was found and expected. They are caused by the user, a broker or the network."""


def is_worker() -> bool:
    """Return whether Spark has started this process as a Python worker."""
    return any(name.startswith(WORKER) for name in os.environ)


def warn_on_stderr() -> None:
    """Write the warnings of the data source to stderr, if this process is a Python worker. Spark copies the stderr of
    its workers to that of the driver or the executor.

    Without a handler, Python would do the same. But with spark.sql.pyspark.worker.logging.enabled, PySpark adds a
    handler that collects log records in a table. Then they would no longer reach the terminal.
    """
    if is_worker():
        handler = logging.StreamHandler(sys.__stderr__)
        handler.setFormatter(logging.Formatter('%(levelname)s kbroker: %(message)s'))
        logging.getLogger(__package__).addHandler(handler)


warn_on_stderr()


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
        if is_worker():
            os.environ[HIDE_TRACEBACK] = '1'
        raise


def require_arrow() -> None:
    """Raise MissingPackageError if this Python lacks pyarrow. PySpark needs pyarrow for every data source in Python."""
    if find_spec('pyarrow') is None:
        raise MissingPackageError("the Python of Spark's workers has no pyarrow; install it with: "
                                  f"{sys.executable} -m pip install 'kbroker[spark]'")


def require_streams() -> None:
    """Raise MissingPackageError if PySpark is older than 4.2. Its streams give a source neither their start nor a
    limit."""
    if find_spec('pyspark.sql.streaming.datasource') is None:
        from pyspark import __version__
        raise MissingPackageError(f'found PySpark {__version__}, expected 4.2 or later, which streams need: '
                                  f"{sys.executable} -m pip install 'kbroker[spark]'")
