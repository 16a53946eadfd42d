"""What Spark says of a failure, in one line: the innermost message, without the stack traces around it."""
from __future__ import annotations

import re
from collections.abc import Iterator

_RAISED = re.compile(r'((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*): (.*)')
_CAUSE = re.compile(r'\s*Caused by: (?:[\w$]+\.)*([\w$]+)(?:: (.*))?')
_CONDITION = re.compile(r'\[[A-Z_.\d]+\] ')
_SQL_STATE = re.compile(r' SQLSTATE: \w{5}$')
_OURS = ('kbroker.', 'kbroker_tools.')
_MOST = 1000


def one_line(error: BaseException) -> str:
    """Of an exception of PySpark or py4j: what our code raised in a task or a plan, else what Python did there, else
    the last cause that Java names, else the first line."""
    lines = str(error).splitlines()
    found = _raised_in_python(lines) or _java_cause(lines) or next((line for line in lines if line.strip()), '')
    return _SQL_STATE.sub('', _CONDITION.sub('', found.strip(), count=1))[:_MOST] or type(error).__name__


def _raised_in_python(lines: list[str]) -> str | None:
    raised = [match for line in _ends_of_tracebacks(lines) if (match := _RAISED.match(line))]
    ours = [match[2] for match in raised if match[1].startswith(_OURS)]
    return ours[-1] if ours else (f'{raised[-1][1]}: {raised[-1][2]}' if raised else None)


def _ends_of_tracebacks(lines: list[str]) -> Iterator[str]:
    """The line of each traceback that names what was raised: the first behind its frames that is not indented."""
    is_inside = False
    for line in lines:
        if 'Traceback (most recent call last)' in line:
            is_inside = True
        elif is_inside and line.strip() and not line.startswith((' ', '\t')):
            is_inside = False
            yield line


def _java_cause(lines: list[str]) -> str | None:
    causes = [match for line in lines if (match := _CAUSE.match(line))]
    if not causes:
        return None
    return f'{causes[-1][1]}: {causes[-1][2]}' if causes[-1][2] else str(causes[-1][1])
