"""The formats of the broker's log on stderr: human-readable lines, journal lines or JSON lines.

A message is one line, and the lines of an exception begin with blanks. So a text from a client that appears in a
message cannot imitate a line of the broker.
"""
import logging
import os
import sys
import time

from kbroker.security.escape import MOST_OF_A_LINE, json_line, shown

_SYSLOG_LEVELS = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))
STANDARD_STREAMS = 3
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {'message', 'asctime', 'taskName'}


class LineFormatter(logging.Formatter):
    """A formatter of text lines. It formats exceptions; subclasses format messages."""

    def exception_lines(self, record: logging.LogRecord) -> list[str]:
        """Return the lines of the record's traceback.

        Each is indented, because the exception's message may contain line ends.
        """
        if not record.exc_info:
            return []
        return ['  ' + shown(line, MOST_OF_A_LINE) for line in self.formatException(record.exc_info).split('\n')]


class HumanFormatter(LineFormatter):
    """Formats a record as `2026-01-31 23:59:59.123 WARNING room: message`, in local time. The level INFO is omitted."""

    def format(self, record: logging.LogRecord) -> str:
        level = '' if record.levelno == logging.INFO else f'{record.levelname} '
        moment = time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(record.created))
        line = f'{moment}.{int(record.msecs):03d} {level}{record.name.removeprefix("kbroker.")}: {message_of(record)}'
        return '\n'.join([line, *self.exception_lines(record)])


class JournalFormatter(LineFormatter):
    """Formats a record as `<4>room: message` for the journal, which adds the time.

    The journal reads the level from the number (sd-daemon(3)).
    """

    def format(self, record: logging.LogRecord) -> str:
        line = f'{record.name.removeprefix("kbroker.")}: {message_of(record)}'
        prefix = journal_prefix(record.levelno)
        return '\n'.join(prefix + each for each in [line, *self.exception_lines(record)])


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object on a line.

    Its fields are time_ms (since the epoch), level, logger, message, the fields of `extra`, and the traceback if there
    is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {'time_ms': int(record.created * 1000), 'level': record.levelname.lower(), 'logger': record.name,
                'message': record.getMessage()[:MOST_OF_A_LINE]}
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line['traceback'] = self.formatException(record.exc_info)
        return json_line(line)


def message_of(record: logging.LogRecord) -> str:
    """Return the message of the record as one line of bounded length."""
    return shown(record.getMessage(), MOST_OF_A_LINE)


def set_up(as_json: bool) -> None:
    """Log all records of level INFO and above to stderr.

    First open the standard streams that the parent process has closed. Otherwise a file of the log directory would get
    the number of stderr, and an error message of a library could be written into it.
    """
    for number in range(STANDARD_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)      # gets the lowest free number
    if sys.stderr is None:
        sys.stderr = open(os.devnull, 'w')  # noqa: SIM115  (open to the end)
    handler = logging.StreamHandler()
    if as_json:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(JournalFormatter() if stderr_is_the_journal() else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def stderr_is_the_journal() -> bool:
    """Return whether stderr is connected to the journal, according to JOURNAL_STREAM (systemd.exec(5))."""
    try:
        stderr = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get('JOURNAL_STREAM') == f'{stderr.st_dev}:{stderr.st_ino}'


def journal_prefix(level: int) -> str:
    """Return the line prefix for a level of `logging`: its syslog level in angle brackets."""
    return next(f'<{number}>' for least, number in _SYSLOG_LEVELS if level >= least)
