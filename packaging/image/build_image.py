"""Builds the container image from a wheel: `kbroker:VERSION` has the broker, `kbroker:VERSION-tools` all commands.

    build_image.py DIST

DIST is the directory of the wheel. The files of Debian and Python come from mmdebstrap, whose hook is fill_root.py. The
same inputs give the same image, in any directory. SOURCE_DATE_EPOCH is the time of all files that are newer.
"""
import gzip
import hashlib
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
CONTEXT = ROOT / 'build' / 'image'
PACKAGING = ROOT / 'build' / 'packaging' / 'venv' / 'bin'

TOOLS = {'mmdebstrap': 'mmdebstrap', 'buildah': 'buildah', 'skopeo': 'skopeo', 'strip': 'binutils',
         'readelf': 'binutils', 'git': 'git'}
"""Maps each program that a build runs to the package of Debian that has it."""
SUITES = {'3.11': 'bookworm', '3.13': 'trixie'}
"""Maps a version of Python to the stable release of Debian that has it."""
ARCHITECTURES = {'x86_64': 'amd64', 'aarch64': 'arm64'}
WHEEL = re.compile(r'kbroker-([^-]+)-cp3(\d+)-cp3\d+-(?:many)?linux[\w.]*?_(x86_64|aarch64)\.whl')
PACKAGES = ('base-files', 'libc6', 'libgcc-s1', 'ca-certificates', 'tzdata', 'python{0}-minimal',
            'libpython{0}-stdlib')
PATHS = ('path-exclude=/usr/share/*', 'path-include=/usr/share/doc/*/copyright', 'path-include=/usr/share/zoneinfo/*',
         'path-include=/usr/share/ca-certificates/*')

MOST_UNPACKED, MOST_COMPRESSED = 80_000_000, 30_000_000
"""The limits in bytes of the image with the broker."""


class Wheel(NamedTuple):
    path: pathlib.Path
    version: str
    python: str
    machine: str


def main():
    wheel = find_wheel(pathlib.Path(sys.argv[1]))
    check_tools()
    shutil.rmtree(CONTEXT, ignore_errors=True)
    CONTEXT.mkdir(parents=True)
    os.environ['SOURCE_DATE_EPOCH'] = epoch = os.environ.get('SOURCE_DATE_EPOCH') or time_of_last_commit()
    os.umask(0o022)
    make_archives(wheel)
    check_sizes()
    for target, tag in (('broker', image_of(wheel.version)), ('tools', f'{image_of(wheel.version)}-tools')):
        run('buildah', '--log-level', 'error', 'build', '--quiet', '--format', 'docker', '--timestamp', epoch,
            '--arch', ARCHITECTURES[wheel.machine], '--build-arg', f'VERSION={wheel.version}', '--target', target,
            '--tag', tag, '--file', str(HERE / 'Containerfile'), str(CONTEXT))
        print(f'{tag}: {remove_ids(tag)}')


def find_wheel(directory):
    """Return the wheel in `directory` for glibc and a Python of SUITES.

    If there are several, the one for this machine counts, and of these the one that can be published (manylinux).
    """
    matches = [(path, match) for path in sorted(directory.glob('*.whl')) if (match := WHEEL.fullmatch(path.name))]
    wheels = [Wheel(path, match[1], f'3.{match[2]}', match[3]) for path, match in matches if f'3.{match[2]}' in SUITES]
    for is_better in (lambda wheel: wheel.machine == platform.machine(), lambda wheel: '-manylinux' in wheel.path.name):
        if len(wheels) > 1:
            wheels = [*filter(is_better, wheels)]
    if len(wheels) != 1:
        names = ', '.join(path.name for path in sorted(directory.glob('*.whl')))
        sys.exit(f'{directory}: found {names or "no wheel"}; expected one wheel of kbroker for glibc and Python '
                 f'{" or ".join(SUITES)}, which a stable Debian has: run make package')
    return wheels[0]


def image_of(version):
    return f'kbroker:{version}'


def check_tools():
    missing = {package for program, package in TOOLS.items() if shutil.which(program) is None}
    if missing:
        sys.exit(f'missing programs to build an image: apt install {" ".join(sorted(missing))}')
    if not (PACKAGING / 'uv').exists():
        sys.exit(f'{PACKAGING}: found no uv, expected the programs that make packages: make build/packaging/installed')


def time_of_last_commit():
    return subprocess.run(['git', '-C', ROOT, 'log', '-1', '--format=%ct'], check=True, capture_output=True,
                          text=True).stdout.strip()


def make_archives(wheel):
    """Write broker.tar, which is the root of the file system, and tools.tar, which adds to it."""
    hook = shlex.join([sys.executable, str(HERE / 'fill_root.py'), str(wheel.path.resolve()), wheel.python,
                       wheel.machine, str(PACKAGING / 'uv'), str(CONTEXT / 'tools.tar')])
    run('mmdebstrap', '--quiet', '--variant=extract', f'--architectures={ARCHITECTURES[wheel.machine]}',
        f'--include={",".join(PACKAGES).format(wheel.python)}', *(f'--dpkgopt={line}' for line in PATHS),
        f'--extract-hook={hook} "$1"', '--skip=output/dev', SUITES[wheel.python], str(CONTEXT / 'broker.tar'))


def check_sizes():
    """Print the sizes of both images, and end the program if the one with the broker is above a limit."""
    unpacked, compressed = size_of('broker.tar')
    more_unpacked, more_compressed = size_of('tools.tar')
    print(f'broker: {unpacked / 1e6:.1f} MB unpacked, {compressed / 1e6:.1f} MB compressed; with all commands: '
          f'{(unpacked + more_unpacked) / 1e6:.1f} MB, {(compressed + more_compressed) / 1e6:.1f} MB')
    if unpacked > MOST_UNPACKED or compressed > MOST_COMPRESSED:
        sys.exit(f'found an image of {unpacked} bytes and {compressed} compressed, expected at most {MOST_UNPACKED} '
                 f'and {MOST_COMPRESSED}')


def size_of(name):
    """Return the bytes of all files in an archive, and the bytes of the archive as a registry compresses it."""
    with tarfile.open(CONTEXT / name) as archive:
        unpacked = sum(member.size for member in archive)
    return unpacked, len(gzip.compress((CONTEXT / name).read_bytes(), 6))


def remove_ids(tag):
    """Remove the random names of buildah's containers from an image, and return the id that the image then has."""
    stored, directory = f'containers-storage:localhost/{tag}', CONTEXT / 'copy'
    copy = 'skopeo', '--insecure-policy', 'copy', '--quiet'
    run(*copy, stored, f'dir:{directory}')
    manifest = json.loads((directory / 'manifest.json').read_text())
    old = directory / manifest['config']['digest'].removeprefix('sha256:')
    config = json.loads(old.read_text())
    for name in ('container', 'container_config', 'parent'):
        config.pop(name, None)
    config['config']['Hostname'] = ''
    for step in config['history']:
        step.pop('comment', None)
    text = json.dumps(config, sort_keys=True).encode()
    digest = hashlib.sha256(text).hexdigest()
    old.unlink()
    (directory / digest).write_bytes(text)
    manifest['config'] |= {'digest': f'sha256:{digest}', 'size': len(text)}
    (directory / 'manifest.json').write_text(json.dumps(manifest))
    run(*copy, f'dir:{directory}', stored)
    shutil.rmtree(directory)
    return digest


def run(*command):
    """Run a program, and show what it printed only if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f'{shlex.join(command)}: found exit status {done.returncode}, expected 0:\n{done.stdout}{done.stderr}')


if __name__ == '__main__':
    main()
