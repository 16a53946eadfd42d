"""One-line messages for failures in Spark. A message is the innermost one, without stack traces."""
from __future__ import annotations

import re
from collections.abc import Iterator

from kbroker.base.errors import KafkaError
from kbroker.client.cluster import RETRIED
from kbroker.client.errors import AnswerTimeout, ClientError
from kbroker_tools.spark.lake.table_format import TableUnavailable

_RAISED = re.compile(r'((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*): (.*)')
_CAUSE = re.compile(r'\s*Caused by: (?:[\w$]+\.)*([\w$]+)(?:: (.*))?')
_ALONE = re.compile(r'(?:^|: )((?:kbroker|kbroker_tools)(?:\.\w+)+): (.*)')
_CALL = 'An error occurred while calling'
_THROWN = re.compile(r': (?:[\w$]+\.)*([\w$]+)(?:: (.*))?')
_SNAPPY = re.compile(r'.*(?:UnsatisfiedLinkError|NoClassDefFoundError|SnappyError).*snappy', re.IGNORECASE)
_CONDITION = re.compile(r'\[[A-Z_.\d]+\] ')
_SQL_STATE = re.compile(r' SQLSTATE: \w{5}$')
_OURS = ('kbroker.', 'kbroker_tools.')
_MOST = 1000
_OF_THE_NETWORK = (*(f'{kind.__module__}.{kind.__qualname__}' for kind in (ClientError, AnswerTimeout)),
                   'kbroker_tools.registry.errors.RegistryUnavailable')
_OF_A_BROKER = f'{KafkaError.__module__}.{KafkaError.__qualname__}'


def one_line(error: BaseException) -> str:
    """Return one line that describes an exception of PySpark or py4j.

    It is the first of these that exists: a note about a library that Java cannot load, the error that kbroker raised in
    a task or a plan, the error that Python raised in a task or a plan, the last cause that Java names, and the first
    line of the message.
    """
    lines = str(error).splitlines()
    found = (_library(lines) or _raised_in_python(lines) or _without_a_traceback(lines) or _java_cause(lines)
             or next((line for line in lines if line.strip()), ''))
    return _SQL_STATE.sub('', _CONDITION.sub('', found.strip(), count=1))[:_MOST] or type(error).__name__


def passes_by_itself(error: BaseException) -> bool:
    """Return whether the exception was caused by the network or by a temporary error of a broker. It may have happened
    in the driver, or in a task; for a task, the message shows it.

    The caller must have read from the broker with these settings before. Otherwise, a connection that breaks before the
    first response could also mean that the address is wrong.
    """
    if isinstance(error, (ClientError, TableUnavailable)):
        return True
    if isinstance(error, KafkaError):
        return error.code in RETRIED
    lines = str(error).splitlines()
    raised = [match for line in _ends_of_tracebacks(lines) if (match := _RAISED.match(line))]
    raised += [match for line in lines if (match := _ALONE.search(line))]
    return any(match[1] in _OF_THE_NETWORK or (match[1] == _OF_A_BROKER and any(
        f': {code.name}:' in match[2] for code in RETRIED)) for match in raised)


def _library(lines: list[str]) -> str | None:
    """Return advice if Java cannot load snappy's native library. The library may be missing, or its directory may not
    allow programs to run."""
    if not any(_SNAPPY.match(line) for line in lines):
        return None
    return ("the codec snappy does not work here, because Java cannot load its library: choose another one, as "
            "--compression zstd, or unpack the library where programs may run: --conf "
            "'spark.driver.extraJavaOptions=-Dorg.xerial.snappy.tempdir=DIR'")


def _raised_in_python(lines: list[str]) -> str | None:
    raised = [match for line in _ends_of_tracebacks(lines) if (match := _RAISED.match(line))]
    ours = [match[2] for match in raised if match[1].startswith(_OURS)]
    return ours[-1] if ours else (f'{raised[-1][1]}: {raised[-1][2]}' if raised else None)


def _without_a_traceback(lines: list[str]) -> str | None:
    return next((match[2] for line in lines if (match := _ALONE.search(line))), None)


def _ends_of_tracebacks(lines: list[str]) -> Iterator[str]:
    """Yield the line that names the exception, for each traceback. It is the first line after the frames that is not
    indented."""
    is_inside = False
    for line in lines:
        if 'Traceback (most recent call last)' in line:
            is_inside = True
        elif is_inside and line.strip() and not line.startswith((' ', '\t')):
            is_inside = False
            yield line


def _java_cause(lines: list[str]) -> str | None:
    causes = [match for line in lines[:2] if lines[0].startswith(_CALL) and (match := _THROWN.match(line))]
    causes += [match for line in lines if (match := _CAUSE.match(line))]
    if not causes:
        return None
    return f'{causes[-1][1]}: {causes[-1][2]}' if causes[-1][2] else str(causes[-1][1])
