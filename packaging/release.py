"""Judges whether the files of a release name one version: the code, the tag, the changelog, the man pages and dist/.

    python packaging/release.py v1.0.0 dist    prints each fault in a line; the exit status is 1 if there is one
    python packaging/release.py --notes        prints the changelog's section of this version
    python packaging/release.py --version      prints this version

On GitHub, the repository has to be the one that pyproject.toml names, because the package index links to that one.
It needs nothing installed.
"""
from __future__ import annotations

import os
import pathlib
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
SECTION = re.compile(r'^## (.+)\n', re.MULTILINE)
RELEASED = re.compile(r'(\d\S*) - (\d{4}-\d{2}-\d{2})')
UNRELEASED = 'Unreleased'
"""The title of the changelog's section for changes since the last release."""


def version_of(root: pathlib.Path) -> str:
    version = runpy.run_path(str(root / 'kbroker' / '__init__.py'))['__version__']
    assert isinstance(version, str)
    return version


def sections_of(changelog: str) -> dict[str, str]:
    """Return the texts of the sections of the changelog by their titles, in order."""
    _, *parts = SECTION.split(changelog)
    return {title: text.strip() for title, text in zip(parts[::2], parts[1::2], strict=True)}


def notes_of(root: pathlib.Path) -> str:
    """Return the changelog's section of the version."""
    version = version_of(root)
    for title, text in sections_of((root / 'CHANGELOG.md').read_text()).items():
        if (released := RELEASED.fullmatch(title)) and released[1] == version:
            return text
    sys.exit(f'CHANGELOG.md: found no section "## {version} - YYYY-MM-DD"; kbroker/__init__.py has this version')


def faults_of_source(root: pathlib.Path) -> Iterator[str]:
    """Yield a line for each file that does not agree with the version of the code."""
    version = version_of(root)
    titles = list(sections_of((root / 'CHANGELOG.md').read_text()))
    released = [title for title in titles if title != UNRELEASED]
    if UNRELEASED in titles[1:]:
        yield f'CHANGELOG.md: the section {UNRELEASED} is not the first one; move it to the top'
    for title in released:
        if not RELEASED.fullmatch(title):
            yield f'CHANGELOG.md: found the section "{title}", expected {UNRELEASED} or "VERSION - YYYY-MM-DD"'
    newest = released[0].partition(' ')[0] if released else 'none'
    if newest != version:
        yield (f'CHANGELOG.md: the newest release is {newest}, expected {version}, which is in kbroker/__init__.py. '
               f'Change one of them')
    for page in sorted((root / 'man').glob('*.[158]')):
        found = re.match(r'\.TH \S+ \d ".*?" "kbroker (.*?)"', page.read_text())
        if not found or found[1] != version:
            yield f'man/{page.name}: found version {found[1] if found else "none"}, expected {version}: make man'


def faults_of_tag(root: pathlib.Path, tag: str) -> Iterator[str]:
    """Yield a line if `tag` is not that of the version, or if changes are listed outside the section of the release."""
    version = version_of(root)
    if tag != f'v{version}':
        yield f'the tag: found {tag}, expected v{version}, the version in kbroker/__init__.py'
    if sections_of((root / 'CHANGELOG.md').read_text()).get(UNRELEASED):
        yield f'CHANGELOG.md: the section {UNRELEASED} has entries; move them into the section of {version}'


def faults_of_repository(root: pathlib.Path, server: str, repository: str) -> Iterator[str]:
    """Yield a line if pyproject.toml names another repository than the one in which hosted CI runs."""
    named = tomllib.loads((root / 'pyproject.toml').read_text())['project']['urls']['Source']
    if named != f'{server}/{repository}':
        yield f'pyproject.toml: found the source at {named}, expected {server}/{repository}, where this workflow runs'


def faults_of_packages(root: pathlib.Path, directory: pathlib.Path) -> Iterator[str]:
    """Yield a line for each sdist and wheel in `directory` of another version, and for a kind that is missing."""
    version = version_of(root)
    packages = [*directory.glob('*.whl'), *directory.glob('*.tar.gz')]
    for suffix, kind in (('.tar.gz', 'sdist'), ('.whl', 'wheel')):
        if not any(path.name.endswith(suffix) for path in packages):
            yield f'{directory}: found no {kind}: make package'
    for path in sorted(packages):
        name, found = path.name.removesuffix('.tar.gz').split('-')[:2]
        if (name, found) != ('kbroker', version):
            yield f'{path}: found {name} {found}, expected kbroker {version}'


def main() -> None:
    arguments = sys.argv[1:]
    if arguments in (['--notes'], ['--version']):
        print(notes_of(ROOT) if arguments == ['--notes'] else version_of(ROOT))
        return
    if len(arguments) != 2 or arguments[0].startswith('-'):
        sys.exit('Usage: python packaging/release.py TAG DIRECTORY, or python packaging/release.py --notes|--version')
    tag, directory = arguments
    faults = [*faults_of_source(ROOT), *faults_of_tag(ROOT, tag), *faults_of_packages(ROOT, pathlib.Path(directory))]
    if 'GITHUB_REPOSITORY' in os.environ:
        faults += faults_of_repository(ROOT, os.environ['GITHUB_SERVER_URL'], os.environ['GITHUB_REPOSITORY'])
    if faults:
        sys.exit('\n'.join(faults))
    print(f'{tag}: the code, the changelog, the man pages and {directory} agree')


if __name__ == '__main__':
    main()
