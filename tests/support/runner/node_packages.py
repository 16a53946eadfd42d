"""Fetches the packages that scripts for Node.js need."""
from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import shutil
import subprocess

from support.runner.machine_requirements import JUDGES, fetching

NPM_LIMIT_S = 500


@functools.cache
def beside_packages(sources: pathlib.Path, *names: str) -> pathlib.Path:
    """Copy scripts of `sources` next to the packages that its package.json names, and return the directory of the
    copies. Fetch the packages if package.json has changed.
    """
    package = sources / 'package.json'
    directory = JUDGES / 'node' / hashlib.sha256(package.read_bytes()).hexdigest()[:16]
    with fetching():
        if not (directory / 'installed').exists():
            directory.mkdir(parents=True, exist_ok=True)
            shutil.copy(package, directory)
            subprocess.run(['npm', 'install', '--no-audit', '--no-fund', '--silent'], cwd=directory, check=True,
                           stdin=subprocess.DEVNULL, timeout=NPM_LIMIT_S)
            (directory / 'installed').touch()
        for name in names:
            # Node.js may be reading an earlier copy in another process, so the new copy replaces it as a whole.
            os.replace(shutil.copy(sources / name, directory / f'{name}.new'), directory / name)
    return directory
