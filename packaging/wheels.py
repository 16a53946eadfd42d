"""Builds wheels with Zig, each for one machine and one C library, and checks them.

    build/packaging/venv/bin/python packaging/wheels.py --python .venv/bin/python --dist dist [TARGET...]

The wheels are for the version of Python that builds them. `make wheels` calls this program.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import zipfile

import ziglang
from debian import NotFetched, unpacked
from elftools.elf.elffile import ELFFile

WORK = pathlib.Path('build/wheels')
LIMIT_BYTES = 6_000_000
GLIBC = '2.17'
MUSL = '1.2'
OPTIONS = '-fomit-frame-pointer -fno-plt'
"""The options that bring the instructions of a request near those of GCC's code, within the bounds of `make gates`.

Zig keeps frame pointers by default, and GCC does not. Python resolves all symbols of a module when it loads the module,
so that a table for later resolution would only cost a jump for each call.
"""
SUITES = {'3.11': 'bookworm', '3.13': 'trixie', '3.14': 'sid', '3.15': 'sid'}
"""Maps each version of Python that Debian has to a suite with its headers."""
OLDEST_MUSL_SUITE = 'bookworm'
"""The suite whose musl, 1.2.3, checks the wheels."""

PROCESSORS = {'core2duo': 'portable', 'Nehalem': 'sse42', 'Westmere': 'sse42x3'}
"""Maps a processor that qemu emulates to the fastest kernel of CRC-32C that a wheel chooses on it."""
CHOICE = '''
import sys
sys.path.insert(0, sys.argv[1])
from kbroker.wire.crc32c import crc32c_by, implementations
assert {crc32c_by(name, b"123456789") for name in implementations()} == {0xe3069283}
print(implementations()[-1])
'''


class Refused(Exception):
    """A wheel that cannot be built or must not be published. The message is one line."""


class Target:
    """One machine and one C library, such as x86_64-linux-gnu."""

    def __init__(self, machine, libc):
        self.machine, self.is_musl = machine, libc == 'musl'
        self.name = f'{machine}-linux-{libc}'
        self.zig_name = self.name if self.is_musl else f'{self.name}.{GLIBC}'
        family, version = ('musllinux', MUSL) if self.is_musl else ('manylinux', GLIBC)
        self.platform = f'{family}_{version.replace(".", "_")}_{machine}'
        self.directory = WORK / self.name


TARGETS = {target.name: target for libc in ('gnu', 'musl') for target in
           (Target('x86_64', libc), Target('aarch64', libc))}


def main():
    parser = argparse.ArgumentParser(description='Build wheels with Zig, and check them.')
    parser.add_argument('--python', required=True, help='the Python that builds, with setuptools and Cython')
    parser.add_argument('--dist', type=pathlib.Path, default='dist', help='the directory of the wheels')
    parser.add_argument('targets', nargs='*', metavar='TARGET', help=f'some of {" ".join(TARGETS)}; all by default')
    given = parser.parse_args()
    os.umask(0o022)     # a wheel has the modes of its files
    try:
        for name in given.targets or TARGETS:
            if name not in TARGETS:
                raise Refused(f'found the target {name}, expected some of: {" ".join(TARGETS)}')
        for name in given.targets or TARGETS:
            make(TARGETS[name], given.python, given.dist)
    except (NotFetched, Refused, subprocess.CalledProcessError) as error:
        sys.exit(f'wheels: {error}')


def make(target, python, dist):
    print(f'{target.name}: building', flush=True)
    shutil.rmtree(target.directory, ignore_errors=True)
    build(target, python)
    wheel, = (target.directory / 'dist').iterdir()
    check_size(wheel)
    root = target.directory / 'unpacked'
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root)
    if target.is_musl:
        checked = check_musl(root, target)
    else:
        checked = check_glibc(wheel)
        if target.machine == platform.machine() == 'x86_64':
            checked += f'; {check_dispatch(root, python)}'
    dist.mkdir(parents=True, exist_ok=True)
    shutil.move(wheel, dist / wheel.name)
    print(f'{target.name}: {dist / wheel.name}, {(dist / wheel.name).stat().st_size:,} bytes; {checked}', flush=True)


def build(target, python):
    """Build a wheel into the directory `dist` of the target."""
    version = output([python, '-c', 'import sys; print("%d.%d" % sys.version_info[:2])'])
    compiler = f'{shlex.quote(str(pathlib.Path(ziglang.__file__).with_name("zig")))} cc -target {target.zig_name}'
    variables = {name: value for name, value in os.environ.items() if name not in ('CPPFLAGS', 'LDFLAGS', 'CPATH')}
    variables |= {
        'CC': compiler, 'LDSHARED': f'{compiler} -shared', 'CFLAGS': f'{OPTIONS} {headers(target, version)}',
        'ZIG_GLOBAL_CACHE_DIR': str((WORK / 'zig-cache').absolute()),
        'SETUPTOOLS_EXT_SUFFIX': f'.cpython-{version.replace(".", "")}-{target.name}.so',
        '_PYTHON_HOST_PLATFORM': f'linux-{target.machine}',
        'SOURCE_DATE_EPOCH': os.environ.get('SOURCE_DATE_EPOCH') or time_of_commit(),
    }
    done = subprocess.run([python, 'setup.py', '--quiet', 'build', '--build-base', target.directory / 'build',
                           'bdist_wheel', '--bdist-dir', target.directory / 'files', '--plat-name', target.platform,
                           '--dist-dir', target.directory / 'dist'], env=variables, check=False)
    if done.returncode != 0:
        raise Refused(f'{target.name}: the build ended with exit status {done.returncode}, expected 0')


def headers(target, version):
    """Return the options for the headers of Python on another machine.

    The headers of this machine's Python serve both C libraries: what differs, Python keeps from extensions.
    """
    if target.machine == platform.machine():
        return ''
    if version not in SUITES:
        raise Refused(f'found Python {version}, whose headers for {target.machine} no suite of Debian has; expected '
                      f'one of {", ".join(SUITES)}. For one target: make wheels TARGETS={platform.machine()}-linux-gnu')
    root = unpacked([f'libpython{version}-dev'], SUITES[version], target.machine,
                    WORK / f'headers-{version}-{target.machine}').absolute()
    return f'-I{root}/usr/include/python{version} -I{root}/usr/include'


def time_of_commit():
    try:
        return output(['git', 'log', '-1', '--format=%ct'])
    except (OSError, subprocess.CalledProcessError):
        raise Refused('found neither SOURCE_DATE_EPOCH nor a git repository; give the time of the release: '
                      'SOURCE_DATE_EPOCH=SECONDS make wheels') from None


def output(command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def check_size(wheel):
    size = wheel.stat().st_size
    if size > LIMIT_BYTES:
        raise Refused(f'{wheel.name}: found {size:,} bytes, expected at most {LIMIT_BYTES:,}')


def check_glibc(wheel):
    """Check that the wheel loads with the C library that its name promises. Return what was checked."""
    found = json.loads(output([sys.executable, '-m', 'auditwheel', 'show', '--json', wheel]))['overall_tag']
    allowed = wheel.stem.rpartition('-')[2]
    if not re.fullmatch(r'manylinux_(\d+)_(\d+)_\w+', found) or glibc_of(found) > glibc_of(allowed):
        raise Refused(f'{wheel.name}: auditwheel found the tag {found}, expected at most {allowed}')
    return f'auditwheel found {found}'


def glibc_of(tag):
    return tuple(map(int, tag.split('_')[1:3]))


def check_musl(root, target):
    """Check that the extensions need no library but musl, and that musl has every symbol that Python does not have.

    Return what was checked.
    """
    extensions = sorted(root.rglob('*.so'))
    for path in extensions:
        with open(path, 'rb') as file:
            needed = [tag.needed for tag in ELFFile(file).get_section_by_name('.dynamic').iter_tags('DT_NEEDED')]
        if needed != ['libc.so']:
            raise Refused(f'{path.relative_to(root)}: found the libraries {", ".join(needed)}, expected only libc.so')
    emulator = []
    if target.machine != platform.machine():
        emulator = [f'qemu-{target.machine}-static']
        if shutil.which(*emulator) is None:
            return f"found no {emulator[0]}, so musl's loader did not run. To install it: apt install qemu-user-static"
    directory = unpacked(['musl'], OLDEST_MUSL_SUITE, target.machine, WORK / f'musl-{target.machine}')
    loader = directory / 'lib' / f'{target.machine}-linux-musl' / 'libc.so'
    for path in extensions:
        done = subprocess.run([*emulator, loader, '--list', path], capture_output=True, text=True, check=False)
        missing = set(re.findall(r': (\w+): symbol not found', done.stderr))
        if not missing:
            raise Refused(f"{path.relative_to(root)}: musl's loader found no symbol of Python to be missing, expected "
                          f'some. It printed: {" ".join(done.stderr.split())}')
        foreign = sorted(name for name in missing if not name.startswith(('Py', '_Py')))
        if foreign:
            raise Refused(f'{path.relative_to(root)}: musl has no {", ".join(foreign)}, expected to miss only symbols '
                          f'of Python')
    return f"musl's loader finds all symbols of {len(extensions)} extensions"


def check_dispatch(root, python):
    """Check which kernel of CRC-32C the wheel chooses on several processors. Return what was checked."""
    emulator = f'qemu-{platform.machine()}-static'
    if shutil.which(emulator) is None:
        return f'found no {emulator}, so the choice of kernels was not checked. To install it: ' \
               f'apt install qemu-user-static'
    executable = output([python, '-c', 'import os, sys; print(os.path.realpath(sys.executable))'])
    for processor, kernel in PROCESSORS.items():
        found = output([emulator, '-cpu', processor, executable, '-I', '-c', CHOICE, root])
        if found != kernel:
            raise Refused(f'on the processor {processor} the wheel chooses the kernel {found}, expected {kernel}')
    return f'kernels {", ".join(PROCESSORS.values())} are chosen on {", ".join(PROCESSORS)}'


if __name__ == '__main__':
    main()
