"""Suggestions for names that do not exist."""
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], separator: str = '; ', *, least: float = 0.6,
                 prefix: str = '') -> str:
    """Return a phrase that suggests the known name closest to `name`, or '' if no known name is close.

    The phrase can be appended to an error message. A name is close if its similarity is at least `least`, from 0 to 1.
    The comparison ignores the case of letters in known names. `prefix` is put before the suggested name.
    """
    from difflib import get_close_matches  # slow to import, and needed only after a mistake

    names = {each.lower(): each for each in known}
    near = get_close_matches(name, names, 1, least)
    return f'{separator}did you mean {prefix}{names[near[0]]}?' if near else ''
