"""Suggestions for names that do not exist."""
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], separator: str = '; ', *, least: float = 0.6,
                 prefix: str = '') -> str:
    """Return the end of a message that suggests the known name closest to `name`, or '' if none is close.

    `least` is the similarity, from 0 to 1, from which a name is close. The comparison ignores the case of letters in
    known names. `prefix` precedes the suggested name.
    """
    from difflib import get_close_matches  # slow to import, and needed only after a mistake

    names = {each.lower(): each for each in known}
    near = get_close_matches(name, names, 1, least)
    return f'{separator}did you mean {prefix}{names[near[0]]}?' if near else ''
