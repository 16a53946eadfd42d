"""Fetches packages of Debian for any architecture and unpacks them, without installing them and without root.

apt-get does the work, with lists and a cache of its own, so that it checks Debian's signatures as always.
"""
import pathlib
import shutil
import subprocess

ARCHITECTURES = {'x86_64': 'amd64', 'aarch64': 'arm64'}
"""Maps a machine to Debian's name of its architecture."""
KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'


class NotFetched(Exception):
    """A package that cannot be fetched. The message is one line."""


def unpacked(packages, suite, machine, directory, *, with_dependencies=False):
    """Unpack packages of a suite for a machine into the directory `directory`, unless it exists. Return its path."""
    directory = pathlib.Path(directory)
    if directory.is_dir():
        return directory
    for program in ('apt-get', 'dpkg-deb'):
        if shutil.which(program) is None:
            raise NotFetched(f'found no {program}, which fetches {" and ".join(packages)} of Debian for {machine}. '
                             f'Run this on Debian')
    if not pathlib.Path(KEYRING).exists():
        raise NotFetched(f'found no {KEYRING}, the keys of Debian. To install it: apt install debian-archive-keyring')
    work = directory.with_name(f'{directory.name}.incomplete').absolute()
    shutil.rmtree(work, ignore_errors=True)
    for name in ('lists/partial', 'cache/archives/partial', 'root'):
        (work / name).mkdir(parents=True)
    (work / 'status').touch()
    (work / 'sources.list').write_text(f'deb [signed-by={KEYRING}] {mirror()} {suite} main\n')
    debs = work / 'cache' / 'archives'
    download = ['install', '--download-only', '--no-install-recommends'] if with_dependencies else ['download']
    for words in (['update'], [*download, *packages]):
        apt_get(words, work, debs, ARCHITECTURES[machine])
    for package in sorted(debs.glob('*.deb')):
        subprocess.run(['dpkg-deb', '-x', package, work / 'root'], check=True)
    (work / 'root').rename(directory)
    shutil.rmtree(work)
    return directory


def mirror():
    """Return the address of the mirror from which this machine fetches Debian."""
    listed = subprocess.run(['apt-get', 'indextargets', '--format', '$(REPO_URI)', 'Origin: Debian', 'Label: Debian'],
                            capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        raise NotFetched('found no mirror of Debian in the sources of apt, expected one. Run this on Debian, after '
                         'apt-get update')
    return listed[0]


def apt_get(words, work, directory, architecture):
    settings = {
        'Dir::State': work, 'Dir::State::lists': work / 'lists', 'Dir::State::status': work / 'status',
        'Dir::Cache': work / 'cache', 'Dir::Etc::sourcelist': work / 'sources.list',
        'Dir::Etc::sourceparts': '/dev/null', 'APT::Architecture': architecture, 'APT::Architectures': architecture,
        'APT::Sandbox::User': 'root', 'APT::Update::Error-Mode': 'any', 'Acquire::Languages': 'none',
        'Acquire::Check-Valid-Until': 'false',      # the lists of a mirror may lag; the signature is what counts
    }
    options = [word for name, value in settings.items() for word in ('-o', f'{name}={value}')]
    done = subprocess.run(['apt-get', '-qq', '--yes', *options, *words], cwd=directory, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith('E: ')] or [done.stderr.strip()]
        raise NotFetched(f'apt-get {" ".join(words)} failed for {architecture}: {errors[0]}')
