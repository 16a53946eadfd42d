"""The broker's log on stderr: human-readable lines, journal lines or JSON lines."""
import json
import logging
import os
import sys
import time

_SYSLOG_LEVELS = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {'message', 'asctime', 'taskName'}


class HumanFormatter(logging.Formatter):
    """`2026-01-31 23:59:59.123 WARNING room: message`, in local time; the level INFO is omitted."""

    def format(self, record: logging.LogRecord) -> str:
        level = '' if record.levelno == logging.INFO else f'{record.levelname} '
        moment = time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(record.created))
        line = f'{moment}.{int(record.msecs):03d} {level}{record.name.removeprefix("kbroker.")}: {record.getMessage()}'
        return f'{line}\n{self.formatException(record.exc_info)}' if record.exc_info else line


class JournalFormatter(logging.Formatter):
    """`<4>room: message`: the journal adds the time and takes the level from the number (sd-daemon(3))."""

    def format(self, record: logging.LogRecord) -> str:
        text = f'{record.name.removeprefix("kbroker.")}: {record.getMessage()}'
        if record.exc_info:
            text += '\n' + self.formatException(record.exc_info)
        prefix = journal_prefix(record.levelno)
        return '\n'.join(prefix + line for line in text.splitlines())


class JsonFormatter(logging.Formatter):
    """One object per line: time_ms (since the epoch), level, logger, message, the fields of `extra`, any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {'time_ms': int(record.created * 1000), 'level': record.levelname.lower(), 'logger': record.name,
                'message': record.getMessage()}
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line['traceback'] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up(as_json: bool) -> None:
    """Log everything of level INFO and above to stderr."""
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
