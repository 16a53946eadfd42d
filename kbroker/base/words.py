"""Human-readable durations and sizes."""

_STEPS = ((86_400, 'd', 3600, 'h'), (3600, 'h', 60, 'min'), (60, 'min', 1, 's'))
"""Rows of (seconds of a unit, its name, seconds of the next smaller unit, its name), the largest unit first."""


def words_for_seconds(seconds: int) -> str:
    """Return a duration in its largest unit and the next smaller unit: `59 s`, `12 min 5 s`, `3 h 20 min`, `5 d`."""
    for size, unit, part, part_unit in _STEPS:
        if seconds >= size:
            rest = seconds % size // part
            return f'{seconds // size} {unit}' + (f' {rest} {part_unit}' if rest else '')
    return f'{seconds} s'


def words_for_duration(duration_ms: float) -> str:
    """Return a duration as `words_for_seconds` does, but more precisely below a minute: `45 ms`, `3.2 s`."""
    if duration_ms < 0:
        return '-' + words_for_duration(-duration_ms)
    if duration_ms < 1000:
        return f'{duration_ms:.0f} ms'
    if duration_ms < 60_000:
        return f'{duration_ms / 1000:.1f} s'
    return words_for_seconds(round(duration_ms / 1000))


def words_for_bytes(size_bytes: float) -> str:
    """Return a size in binary units: `512 B`, `1.5 KiB`, `3.2 GiB`."""
    for unit in ('B', 'KiB', 'MiB', 'GiB'):
        if abs(size_bytes) < 1024:
            return f'{size_bytes:.0f} B' if unit == 'B' else f'{size_bytes:.1f} {unit}'
        size_bytes /= 1024
    return f'{size_bytes:.1f} TiB'
