"""Parsers of durations and times: Java's `PnDTnHnMn.nS`, a number with a unit such as `15m`, and ISO 8601 times."""
import re

JAVA = (
    r'(?P<sign>[-+]?)P(?:(?P<days>[-+]?\d+)D)?'
    r'(?:T(?=[-+\d])(?:(?P<hours>[-+]?\d+)H)?(?:(?P<minutes>[-+]?\d+)M)?'
    r'(?:(?P<seconds>[-+]?\d+)(?:[.,](?P<fraction>\d{0,9}))?S)?)?')
UNITS_MS = {'ms': 1, 's': 1000, 'm': 60_000, 'min': 60_000, 'h': 3_600_000, 'd': 86_400_000}


def java_duration_ms(text: str) -> int:
    """Return a duration in Java's form `PnDTnHnMn.nS` in milliseconds. Raise ValueError for any other text."""
    match = re.fullmatch(JAVA, text, re.ASCII | re.IGNORECASE)
    if match is None or text.upper().endswith(('P', 'T')):
        raise ValueError('a duration as PnDTnHnMn.nS')
    parts = {unit: int(match[unit] or 0) for unit in ('days', 'hours', 'minutes', 'seconds')}
    nanoseconds = int((match['fraction'] or '').ljust(9, '0'))
    if (match['seconds'] or '').startswith('-'):
        nanoseconds = -nanoseconds
    seconds = ((parts['days'] * 24 + parts['hours']) * 60 + parts['minutes']) * 60 + parts['seconds']
    if not -2**63 <= seconds < 2**63:
        raise ValueError('a duration as PnDTnHnMn.nS of at most 2**63 - 1 seconds')
    nanoseconds += seconds * 1_000_000_000
    return (-nanoseconds if match['sign'] == '-' else nanoseconds) // 1_000_000


def duration_ms(text: str) -> int:
    """Return a number with a unit, such as `15m`, `30 s` or `100ms`, in milliseconds.

    Raise ValueError, without a message, for any other text.
    """
    match = re.fullmatch(rf'([0-9]{{1,19}})\s*({"|".join(UNITS_MS)})', text)
    if match is None:
        raise ValueError
    return int(match[1]) * UNITS_MS[match[2]]


def time_ms(text: str) -> int:
    """Return an ISO 8601 time in milliseconds since the epoch. A time without an offset is in UTC.

    Raise ValueError for any other text.
    """
    from datetime import UTC, datetime  # slow to import

    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
