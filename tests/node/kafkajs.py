"""Fetches kafkajs once for the scripts of the tests."""
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess

from support.runner.machine_requirements import JUDGES, fetching

SOURCES = pathlib.Path(__file__).parent


@functools.cache
def script(name):
    """Copy a script of this directory next to the packages that it needs, and return its path."""
    package = SOURCES / 'package.json'
    directory = JUDGES / 'node' / hashlib.sha256(package.read_bytes()).hexdigest()[:16]
    with fetching():
        if not (directory / 'installed').exists():
            directory.mkdir(parents=True, exist_ok=True)
            shutil.copy(package, directory)
            subprocess.run(['npm', 'install', '--no-audit', '--no-fund', '--silent'], cwd=directory, check=True,
                           stdin=subprocess.DEVNULL, timeout=500)
            (directory / 'installed').touch()
        # Node.js may be reading an earlier copy in another process, so the new copy replaces it as a whole.
        os.replace(shutil.copy(SOURCES / name, directory / f'{name}.new'), directory / name)
    return directory / name
