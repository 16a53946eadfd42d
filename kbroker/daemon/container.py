"""The parts of a start that only containers need: warnings about their mistakes, and an address that comes late.

A container learns the port under which clients find it only after its start, if the runtime chooses the port.
"""
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath

from kbroker.settings.table import SETTINGS

MOUNTS = Path('/proc/self/mountinfo')
LOOK_S = 0.02
"""The seconds between two looks at a file. The broker does not serve yet, so nothing else has to wait."""

logger = logging.getLogger('kbroker')


def await_text(path: Path) -> str:
    """Return the text of a file, without blanks around it. Wait until the file exists and has one.

    Raise OSError if the file cannot be read, and UnicodeDecodeError if it is not text.
    """
    is_logged = False
    while True:
        try:
            text = path.read_text().strip()
        except FileNotFoundError:
            text = ''
        if text:
            return text
        if not is_logged:
            logger.info('waiting for the address for clients, HOST:PORT, in %s', path)
            is_logged = True
        time.sleep(LOOK_S)


def warnings_in_a_container(variables: Mapping[str, str], directory: str) -> Iterator[str]:
    """Yield warnings about variables that have no effect, and about records that go with the container."""
    for name in sorted(variables):
        setting = setting_of(name)
        if setting is not None:
            yield f'the variable {name} has no effect: set KBROKER_SET={setting}=VALUE, or mount a file of settings'
    mount_point, kind = mount_of(directory, MOUNTS.read_text().splitlines())
    mend = f'to keep them, mount a volume: -v kbroker:{directory}'
    if kind == 'tmpfs':
        yield f'{directory} is in memory (tmpfs): its records are lost when the container stops; {mend}'
    elif mount_point == '/':
        yield f'{directory} is on no volume: its records are lost when the container is removed; {mend}'


def setting_of(variable: str) -> str | None:
    """Return the setting that a variable names in the manner of Kafka's images, or None."""
    prefix, _, rest = variable.partition('_')
    if prefix not in ('KAFKA', 'KBROKER'):
        return None
    name = rest.lower().replace('_', '.')
    return next((each for each in (name, f'kbroker.{name}') if each in SETTINGS), None)


def mount_of(directory: str, lines: Iterable[str]) -> tuple[str, str]:
    """Return (mount point, type) of the file system of a directory, from the lines of mountinfo (proc(5))."""
    found = ('/', '')
    for line in lines:
        fields, _, rest = line.partition(' - ')
        # The kernel writes blanks and backslashes in octal.
        point = re.sub(r'\\([0-7]{3})', lambda match: chr(int(match[1], 8)), fields.split()[4])
        # A later mount covers an earlier one at the same place.
        if PurePath(directory).is_relative_to(point) and len(point) >= len(found[0]):
            found = point, rest.split()[0]
    return found
