"""Rounds of a bench. Each round measures every broker once, on its own directory, in alternating order."""
from __future__ import annotations

import contextlib
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import click
from load_generator import LoadError
from peer_brokers import PEERS, Site, Unavailable, site_of, versions
from stopping import workplace

F = TypeVar('F')
"""The type in which a bench stores its figures of one broker."""


class GroupError(Exception):
    """Raised if a broker answers with an error, or a group does not become stable in time."""


@contextlib.contextmanager
def new_site(name: str) -> Iterator[Site]:
    """Start a peer on a new directory. Raise LoadError, OSError or Unavailable if it does not start."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        site = site_of(PEERS[name], pathlib.Path(work))
        try:
            yield site
        finally:
            site.close()


def play(names: str, rounds: int, found: Callable[[], F], measure: Callable[[Site, int, F], None],
         report: Callable[[Mapping[str, F]], Iterable[str]]) -> None:
    """Measure the named peers in each round, then print the report and the faults.

    `found` returns empty figures. `measure` gets the number of a round, and adds the figures of the round to them.
    """
    if unknown := {*names.split(',')} - {*PEERS}:
        raise click.ClickException(f'no such peers: {", ".join(sorted(unknown))}')
    figures = {name: found() for name in names.split(',')}
    faults: list[str] = []
    with workplace():
        try:
            for number in range(rounds):
                for name in list(figures)[::1 if number % 2 else -1]:
                    try:
                        with new_site(name) as site:
                            measure(site, number, figures[name])
                    except (GroupError, LoadError, OSError, Unavailable) as fault:
                        faults.append(f'{name}: {fault}')
        finally:
            click.echo(versions())
            click.echo('\n'.join([*report(figures), '', *(f'**failed** {fault}' for fault in faults)]))


def spread(values: Sequence[float], form: str = '.3f') -> str:
    """Return the median with the range in parentheses."""
    return f'{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})'
