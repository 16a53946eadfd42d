"""Judges the sdist and the wheel of a directory: their contents, size and platform.

`make package` calls it after the build: `judge.py DIST ENVIRONMENT`, where ENVIRONMENT has the wheel with its
dependencies, no other package and no bytecode. The programs of the dependency group `packaging` are those of the
environment that runs this file. It prints each figure with its bound, then the faults, one a line.
"""
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

IN_SDIST = ('kbroker', 'kbroker_tools', 'man', 'packaging', 'CHANGELOG.md', 'LICENSE', 'MANIFEST.in', 'Makefile',
            'README.md', 'pyproject.toml', 'setup.py')
"""The directories and files of the repository that a build or an installation needs."""
WRITTEN_BY_THE_BUILD = re.compile(r'(?:PKG-INFO|setup\.cfg|kbroker\.egg-info/.+|kbroker/daemon/site\.tar\.xz)$')
IMPORT_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f'{name} cannot be imported: {error!r}')
"""
MB = 1_000_000
MOST_WHEEL_BYTES = 6 * MB
MOST_INSTALLED_BYTES = 30 * MB
NEWEST_GLIBC = (2, 28)


def main():
    dist, environment = map(pathlib.Path, sys.argv[1:])
    sdist, wheel = the_file(dist, '*.tar.gz'), the_file(dist, '*.whl')
    faults = [*sdist_faults(sdist),
              *size_faults('the wheel', wheel.stat().st_size, MOST_WHEEL_BYTES),
              *size_faults('installed with dependencies', bytes_of_files(environment / 'lib'), MOST_INSTALLED_BYTES),
              *loading_faults(wheel, environment), *glibc_faults(wheel),
              *faults_of('twine', 'check', '--strict', sdist, wheel), *faults_of('check-wheel-contents', wheel)]
    if faults:
        sys.exit('\n'.join(faults))


def the_file(dist, pattern):
    found = list(dist.glob(pattern))
    if len(found) != 1:
        sys.exit(f'{dist}: found {len(found)} files {pattern}, expected one')
    return found[0]


def sdist_faults(path):
    """Return what the sdist has too much or lacks, compared with the files that git tracks."""
    with tarfile.open(path) as archive:
        names = {member.name.partition('/')[2] for member in archive if member.isfile()}
    listed = subprocess.run(['git', 'ls-files', '-z', *IN_SDIST], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        return [f'the contents of the sdist cannot be judged, because git lists no files: {listed.stderr.strip()}']
    return contents_faults(names, set(listed.stdout.split('\0')) - {''})


def contents_faults(found, tracked):
    found = {name for name in found if not WRITTEN_BY_THE_BUILD.match(name)}
    return [*(f'{name}: in the sdist, and not tracked by git' for name in sorted(found - tracked)),
            *(f'{name}: not in the sdist. See MANIFEST.in' for name in sorted(tracked - found))]


def size_faults(subject, found_bytes, most_bytes):
    print(f'{subject}: {found_bytes / MB:.2f} MB, at most {most_bytes / MB:.0f} MB')
    if found_bytes > most_bytes:
        return [f'{subject}: found {found_bytes} bytes, expected at most {most_bytes}']
    return []


def bytes_of_files(directory):
    """Return the sum of the sizes of all files, as `du --apparent-size` does: blocks differ between file systems."""
    return sum(path.lstat().st_size for path in directory.rglob('*') if path.is_file() and not path.is_symlink())


def loading_faults(wheel, environment):
    """Import each compiled module outside of the tree, and return an error for each that fails."""
    with zipfile.ZipFile(wheel) as archive:
        modules = [name.partition('.')[0].replace('/', '.') for name in archive.namelist() if name.endswith('.so')]
    print(f'compiled modules: {len(modules)}')
    done = subprocess.run([environment.resolve() / 'bin' / 'python', '-B', '-c', IMPORT_EACH, *modules],
                          cwd=environment, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else [f'the modules cannot be imported: {done.stderr}']


def glibc_faults(wheel):
    """Return a fault if the wheel needs a newer glibc than the bound."""
    done = run('auditwheel', 'show', wheel)
    words = ' '.join(done.stdout.split())
    found = re.search(r'following platform tag: "manylinux_(\d+)_(\d+)_', words)
    if done.returncode != 0 or found is None:
        return [f'auditwheel finds no platform tag of glibc: {words or done.stderr.strip()}']
    version = tuple(map(int, found.groups()))
    print(f'glibc: {version[0]}.{version[1]}, at most {NEWEST_GLIBC[0]}.{NEWEST_GLIBC[1]}')
    if version > NEWEST_GLIBC:
        return [f'the wheel needs the glibc of {found[0]}, expected {NEWEST_GLIBC[0]}.{NEWEST_GLIBC[1]} at most']
    return []


def faults_of(program, *arguments):
    done = run(program, *arguments)
    return [] if done.returncode == 0 else [f'{program}: {line}' for line in done.stdout.splitlines() if line.strip()]


def run(program, *arguments):
    return subprocess.run([pathlib.Path(sys.executable).with_name(program), *map(str, arguments)], capture_output=True,
                          text=True, check=False)


if __name__ == '__main__':
    main()
