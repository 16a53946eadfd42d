"""Brokers with a bug that was planted on purpose. The broker's own code has no switch for a bug.

A bug is a change of the source text of one or two modules. `build` compiles the changed modules in a copy of the
package.
"""
from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
from dataclasses import dataclass

from support.brokers.broker_process import ROOT

BUILD_LIMIT_S = 900
Change = tuple[str, str, str]
"""A file of the package, a text that the file has once, and the text that replaces it."""


@dataclass(frozen=True)
class Bug:
    name: str
    changes: tuple[Change, ...]


BUGS = (
    Bug('last stable offset early', (
        ('topics/partition.pyx', 'return max(first_unstable, self._log.log_start_offset)',
         'return self.high_watermark'),)),
    Bug('fencing skipped', (
        ('transaction/checks.pyx', 'if producer_epoch != metadata.current.epoch_of_client():', 'if False:'),
        ('log/producer_state.pyx', '            if entry is not None and batch.producer_epoch < entry.producer_epoch:',
         '            if False:'),
        ('log/producer_state.pyx', 'if entry is not None and batch.producer_epoch < entry.producer_epoch and origin',
         'if False and origin'),
        ('log/producer_state.pyx', 'if batch.base_sequence != expected:',
         'if batch.producer_epoch == entry.producer_epoch and batch.base_sequence != expected:'))),
    Bug('duplicate forgotten', (
        ('log/producer_state.pyx', '            if known != NULL:', '            if False:'),
        ('log/producer_state.pyx', 'if batch.base_sequence != expected:', 'if batch.base_sequence > expected:'))),
    Bug('marker dropped', (
        ('transaction/end_transaction.pyx', '            if partition is None:',
         '            if partition is None or (number == 0 and len(self.partitions) > 1):'),)),
    Bug('acceptance forgotten', (('group/share/partition.pyx', 'ACCEPT: ACKNOWLEDGED,', 'ACCEPT: AVAILABLE,'),)),
    Bug('release taken for a rejection', (
        ('group/share/partition.pyx', 'RELEASE: AVAILABLE,', 'RELEASE: ARCHIVED,'),)),
)


def build(bug: Bug, directory: pathlib.Path) -> pathlib.Path:
    """Copy the package with its compiled modules, change sources, and compile them. Return the copy's directory."""
    compiled = [str(path.relative_to(ROOT)) for path in (ROOT / 'build').glob('lib.*')]     # spares the other modules
    for name in ('kbroker', 'kbroker_tools', 'packaging', 'build/cython', *compiled):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('setup.py', 'pyproject.toml', 'README.md', 'LICENSE'):
        shutil.copy2(ROOT / name, directory / name)
    for file, text, replacement in bug.changes:
        path = directory / 'kbroker' / file
        source = path.read_text()
        assert source.count(text) == 1, f'{bug.name}: {file} has {text!r} {source.count(text)} times, expected once'
        path.write_text(source.replace(text, replacement))
    done = subprocess.run([sys.executable, 'setup.py', '--quiet', 'build_ext', '--inplace'], cwd=directory, text=True,
                          capture_output=True, timeout=BUILD_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return directory
