"""Archives of the classes of Java programs. With an archive, a virtual machine needs two thirds of the time to start.
"""
from __future__ import annotations

import hashlib
import pathlib
import subprocess
from collections.abc import Callable, Sequence

from support.runner.machine_requirements import locked


def archive_options(place: pathlib.Path, class_path: Sequence[pathlib.Path],
                    train: Callable[[list[str]], None]) -> list[str]:
    """Return the options with which a virtual machine uses the archive of a class path. Create the archive in `place`
    if it is missing: `train` runs a program with the options that it receives, and the archive then contains the
    classes that this program loaded. Each version of Java and each set of jars has a separate archive. Each archive has
    its own lock, so that a long training delays only the tests that need this archive.
    """
    archive = place / f'{_digest(class_path)}.jsa'
    with locked(archive.with_suffix('.lock')):
        if not archive.exists():
            made = archive.with_suffix('.new')
            train([f'-XX:ArchiveClassesAtExit={made}', '-Xlog:cds=off', '-Xlog:cds+dynamic=off'])
            made.touch()    # a Java without archives writes none
            made.rename(archive)
    return [f'-XX:SharedArchiveFile={archive}'] if archive.stat().st_size else []


def _digest(class_path: Sequence[pathlib.Path]) -> str:
    """Return a digest of the facts on which an archive depends: the virtual machine, and the size and time of each jar.
    """
    version = subprocess.run(['java', '-version'], capture_output=True, check=True).stderr
    jars = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in class_path]
    return hashlib.sha256(version + repr(jars).encode()).hexdigest()[:16]
