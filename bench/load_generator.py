"""Compiles and runs the load generator of bench/load, and parses its figures. It also compiles the floor server.

    python bench/load_generator.py HOST:PORT [--seconds S] [--warm-up S] [--pid BROKER] LOAD...

A LOAD is KIND:NAME=VALUE,... with the kinds and names of bench/load/main.c, for example
`produce:topic=t,connections=8,depth=5,size=16384,partitions=8` or `transaction:topic=t,connections=64,partitions=64`.
The loads of one command run at the same time. Their topics must exist.
"""
from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import click

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from kbroker.base.errors import ErrorCode

SOURCES = pathlib.Path(__file__).parent / 'load'
OUT = pathlib.Path(__file__).parent / 'out'
FLOOR_SOURCES = ('floor.c', 'wire.c')
FLAGS = ('-O2', '-std=gnu11', '-Wall', '-Wextra')
TLS_FLAGS = ('-DWITH_TLS', '-lssl', '-lcrypto')
BUILD_LIMIT_S = 120
DRAIN_LIMIT_S = 90


class LoadError(Exception):
    """Raised if a load did not finish, or if the broker returned errors."""


@dataclass
class Figures:
    """The figures of one load. The bytes that were sent and received are those of whole frames."""

    kind: str
    requests: int
    records: int
    bytes_sent: int
    bytes_received: int
    transactions: int
    aborted_transactions: int
    retries: int
    empty_answers: int
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    request_bytes: int
    errors: dict[str, int]

    @property
    def count(self) -> int:
        """Return the number of transactions, or, if the load has no transactions, the number of requests."""
        return self.transactions if self.kind == 'transaction' else self.requests


@dataclass
class Measurement:
    """The result of a run. The CPU times are those of single processes; `steal` is the stolen time of all processors
    together."""

    seconds: float
    client_cpu_s: float
    broker_cpu_s: float
    others_cpu_s: float
    steal_s: float
    loads: list[Figures] = field(default_factory=list)


@functools.cache
def build() -> pathlib.Path:
    """Compile the load generator, with TLS if OpenSSL's headers exist. Raise LoadError with the compiler's output if it
    does not compile."""
    sources = [path for path in sorted(SOURCES.glob('*.c')) if path.name != 'floor.c']
    return _compiled('load', sources, TLS_FLAGS if has_tls() else ())


@functools.cache
def build_floor() -> pathlib.Path:
    """Compile the floor server, which does almost no work for a request. Raise LoadError if it does not compile."""
    return _compiled('floor', [SOURCES / name for name in FLOOR_SOURCES], ())


def _compiled(name: str, sources: list[pathlib.Path], more_flags: tuple[str, ...]) -> pathlib.Path:
    program = OUT / name
    newest = max(path.stat().st_mtime for path in SOURCES.iterdir())
    if program.exists() and program.stat().st_mtime >= newest:
        return program
    if shutil.which('cc') is None:
        raise LoadError('there is no C compiler: cc was not found')
    OUT.mkdir(exist_ok=True)
    fresh = program.with_suffix(f'.{os.getpid()}.new')     # another process may compile it at the same time
    done = subprocess.run(['cc', *FLAGS, *map(str, sources), '-o', str(fresh), *more_flags], capture_output=True,
                          text=True, timeout=BUILD_LIMIT_S, check=False)
    if done.returncode:
        raise LoadError(f'{name} does not compile:\n{done.stderr}')
    fresh.replace(program)
    return program


@functools.cache
def has_tls() -> bool:
    """Return whether this machine can compile and link a program with OpenSSL."""
    done = subprocess.run(['cc', '-x', 'c', '-', '-o', '/dev/null', *TLS_FLAGS[1:]], text=True, capture_output=True,
                          input='#include <openssl/ssl.h>\nint main(void) { return !TLS_client_method(); }\n',
                          timeout=BUILD_LIMIT_S, check=False)
    return done.returncode == 0


def run(address: str, loads: list[str], seconds: float, warm_up_s: float | None = None, pid: int = 0) -> Measurement:
    """Run loads concurrently, after a warm-up of `warm_up_s`, or of a tenth of `seconds`. Raise LoadError if the broker
    fails.

    A load with a bounded count may end during the warm-up; its figures then cover the whole run.
    """
    warm_up_s = seconds / 10 if warm_up_s is None else warm_up_s
    command = [str(build()), address, str(seconds), str(warm_up_s), str(pid), *loads]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + warm_up_s + DRAIN_LIMIT_S,
                              check=False, start_new_session=True)  # signals to the bench must not reach the load
    except subprocess.TimeoutExpired:
        raise LoadError(f'{" ".join(loads)}: did not end') from None
    assert done.returncode >= 0, f'{" ".join(loads)}: the load generator died of signal {-done.returncode}'
    if done.returncode:
        raise LoadError(f'{" ".join(loads)}: {done.stderr.strip() or f"exit code {done.returncode}"}')
    measured: dict[str, Any] = json.loads(done.stdout)
    found = Measurement(**{**measured, 'loads': [Figures(**figures) for figures in measured['loads']]})
    for figures in found.loads:
        if figures.errors:
            counts = ', '.join(f'{count} x {ErrorCode(int(code)).name}' for code, count in figures.errors.items())
            raise LoadError(f'{" ".join(loads)}: errors in answers: {counts}')
    return found


@click.command(help=__doc__)
@click.argument('address')
@click.argument('loads', nargs=-1, required=True)
@click.option('--seconds', default=3.0, show_default=True)
@click.option('--warm-up', 'warm_up_s', type=float, help='Uncounted seconds before; default: a tenth.')
@click.option('--pid', default=0, help='The process id of the broker, to measure its CPU time.')
def main(address: str, loads: tuple[str, ...], seconds: float, warm_up_s: float | None, pid: int) -> None:
    try:
        found = run(address, list(loads), seconds, warm_up_s, pid)
    except LoadError as fault:
        raise click.ClickException(str(fault)) from None
    for figures in found.loads:
        unit, count = 'transactions' if figures.kind == 'transaction' else 'requests', figures.count
        cpu = f', {found.broker_cpu_s / count * 1e6:.1f} us broker CPU each' if pid and count else ''
        click.echo(f'{figures.kind}: {count} {unit}, {count / found.seconds:,.0f}/s, '
                   f'{(figures.bytes_sent + figures.bytes_received) / found.seconds / 1e6:,.1f} MB/s, '
                   f'p50 {figures.p50_us:.0f} us, p99 {figures.p99_us:.0f} us, p99.9 {figures.p999_us:.0f} us, '
                   f'max {figures.max_us:.0f} us{cpu}, {figures.retries} retries')
    available_s = found.seconds * 1e-2
    click.echo(f'client {found.client_cpu_s / available_s:.0f}%, broker {found.broker_cpu_s / available_s:.0f}%, '
               f'others {found.others_cpu_s / available_s:.0f}%, steal {found.steal_s / available_s:.0f}% '
               'of a processor')


if __name__ == '__main__':
    main()
