"""What the broker says: human lines, or JSON lines, on stderr."""
import json
import logging
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {'message', 'asctime', 'taskName'}


class HumanFormatter(logging.Formatter):
    """`2026-01-31 23:59:59.123 WARNING room: message`, in local time; INFO goes without its name."""

    def format(self, record: logging.LogRecord) -> str:
        level = '' if record.levelno == logging.INFO else f'{record.levelname} '
        moment = time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(record.created))
        line = f'{moment}.{int(record.msecs):03d} {level}{record.name.removeprefix("kbroker.")}: {record.getMessage()}'
        return f'{line}\n{self.formatException(record.exc_info)}' if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object a line: time_ms (since the epoch), level, logger, message, whatever `extra` names, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {'time_ms': int(record.created * 1000), 'level': record.levelname.lower(), 'logger': record.name,
                'message': record.getMessage()}
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line['traceback'] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up(as_json: bool) -> None:
    """Send everything of level INFO and above to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
