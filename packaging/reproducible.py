"""Builds the last commit twice, and compares the bytes of the sdists and of the wheels: `make reproducible`.

    python packaging/reproducible.py DIRECTORY

The two builds have nothing of the machine in common that an archive could contain: each has its own directory, umask,
time zone, locale, home directory and hash seed, and the files have other times.
"""
from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).parent.parent
PLACES = {
    'first': (0o022, {'TZ': 'UTC', 'LC_ALL': 'C', 'PYTHONHASHSEED': '1'}),
    'a longer path/second': (0o077, {'TZ': 'Asia/Kathmandu', 'LC_ALL': 'C.UTF-8', 'PYTHONHASHSEED': '2'}),
}
"""Maps the directory of a build to its umask and its environment."""
DAY_S = 24 * 60 * 60


def clone(source: pathlib.Path, umask: int) -> None:
    """Clone the repository to `source`, with files whose times depend on the umask."""
    old = os.umask(umask)
    try:
        subprocess.run(['git', 'clone', '--quiet', '--shared', str(ROOT), str(source)], check=True)
    finally:
        os.umask(old)
    for path in source.rglob('*'):
        if '.git' not in path.parts:
            os.utime(path, times=(path.stat().st_mtime - umask * DAY_S,) * 2)


def build(source: pathlib.Path, umask: int, environment: dict[str, str]) -> pathlib.Path:
    """Build the packages of the clone in `source`, and return the directory with them."""
    home = source.with_name(f'{source.name} home')
    home.mkdir()
    log = home / 'log'
    print(f'Building in {source}, with umask {umask:03o} and {environment}', flush=True)
    with log.open('w') as written:
        done = subprocess.run([sys.executable, '-m', 'build', '--no-isolation', '--outdir', 'dist'], cwd=source,
                              env=os.environ | environment | {'HOME': str(home)}, stdout=written,
                              stderr=subprocess.STDOUT, umask=umask, check=False)
    if done.returncode != 0:
        sys.exit(f'the build in {source} failed: found exit status {done.returncode}, expected 0. Its output: {log}')
    return source / 'dist'


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def members_of(archive: pathlib.Path) -> dict[str, tuple[object, ...]]:
    """Return the attributes and the hash of each member of a wheel or an sdist by its name."""
    if archive.suffix == '.whl':
        with zipfile.ZipFile(archive) as wheel:
            return {each.filename: (each.date_time, oct(each.external_attr >> 16), sha256(wheel.read(each)))
                    for each in wheel.infolist()}
    with tarfile.open(archive) as sdist:
        return {each.name: (each.mtime, oct(each.mode), each.uid, each.gid, each.uname, each.gname,
                            sha256(file.read()) if (file := sdist.extractfile(each)) else '') for each in sdist}


def differences(first: pathlib.Path, second: pathlib.Path) -> list[str]:
    """Return a line for each member that is not the same in two archives."""
    one, other = members_of(first), members_of(second)
    found = [f'  {name}: {one.get(name, "missing")} and {other.get(name, "missing")}'
             for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    return found or ['  each member is the same, the archive is not']


def compare(directories: list[pathlib.Path]) -> list[str]:
    """Print the hash of each package, and return a line for each difference between two directories of packages."""
    first, second = ({path.name: path for path in directory.iterdir()} for directory in directories)
    faults = []
    for name in sorted(first.keys() | second.keys()):
        if name not in first or name not in second:
            faults.append(f'{name}: found it in one of the two builds, expected it in both')
            continue
        hashes = [sha256(path.read_bytes()) for path in (first[name], second[name])]
        if hashes[0] == hashes[1]:
            print(f'{hashes[0]}  {name}')
        else:
            faults += [f'{name}: found {hashes[0]} and {hashes[1]}, expected equal hashes',
                       *differences(first[name], second[name])]
    return faults


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit('Usage: python packaging/reproducible.py DIRECTORY')
    directory = pathlib.Path(sys.argv[1]).absolute()
    shutil.rmtree(directory, ignore_errors=True)
    changed = subprocess.run(['git', 'status', '--porcelain'], cwd=ROOT, capture_output=True, text=True, check=True)
    if changed.stdout:
        print('The last commit is built. It does not contain the uncommitted changes of this tree.')
    # Clone twice before the first build, because that takes minutes, in which the repository may get a commit.
    for place, (umask, _) in PLACES.items():
        clone(directory / place, umask)
    built = [build(directory / place, *settings) for place, settings in PLACES.items()]
    faults = compare(built)
    if faults:
        sys.exit('\n'.join(faults))
    print('Both builds wrote the same bytes.')


if __name__ == '__main__':
    main()
