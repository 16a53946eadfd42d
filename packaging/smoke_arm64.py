"""Runs packaging/smoke.py with the wheel for aarch64, emulated by qemu, on an unpacked Debian.

    build/packaging/venv/bin/python packaging/smoke_arm64.py --python .venv/bin/python --dist dist

`make smoke-arm64` calls this program. Nothing is installed, and no root is needed.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys

from debian import NotFetched, unpacked
from wheels import SUITES, TARGETS, WORK, Refused, output

TARGET = TARGETS['aarch64-linux-gnu']
PACKAGES = ('base-files', 'libc6', 'libgcc-s1')
BINFMT = pathlib.Path('/proc/sys/fs/binfmt_misc')
EXPECTED_KERNEL = 'armv8'
KERNELS = 'from kbroker.wire.crc32c import implementations; print(implementations()[-1])'


def main():
    parser = argparse.ArgumentParser(description='Run the smoke test with the wheel for aarch64, under qemu.')
    parser.add_argument('--python', required=True, help='a Python of the version that the wheel is for')
    parser.add_argument('--dist', type=pathlib.Path, default='dist', help='the directory of the wheel')
    given = parser.parse_args()
    try:
        smoke(given.python, given.dist)
    except (NotFetched, Refused, subprocess.CalledProcessError) as error:
        sys.exit(f'smoke-arm64: {error}')


def smoke(python, dist):
    check_emulator()
    version = output([python, '-c', 'import sys; print("%d.%d" % sys.version_info[:2])'])
    wheels = sorted(dist.glob(f'*-cp{version.replace(".", "")}-*_{TARGET.machine}.whl'))
    wheels = [wheel for wheel in wheels if 'manylinux' in wheel.name]
    if len(wheels) != 1:
        raise Refused(f'found {len(wheels)} wheels of {TARGET.name} for Python {version} in {dist}, expected 1. To '
                      f'build it: make wheels TARGETS={TARGET.name}')
    if version not in SUITES:
        raise Refused(f'found Python {version}, which no suite of Debian has; expected one of {", ".join(SUITES)}')
    root = unpacked([*PACKAGES, f'python{version}'], SUITES[version], TARGET.machine,
                    WORK / f'root-{version}-{TARGET.machine}', with_dependencies=True).absolute()
    site = (WORK / f'site-{version}-{TARGET.machine}').absolute()
    shutil.rmtree(site, ignore_errors=True)
    subprocess.run([pathlib.Path(sys.executable).with_name('uv'), 'pip', 'install', '--quiet', '--python', python,
                    '--target', site, '--only-binary', ':all:', '--python-platform', 'aarch64-manylinux_2_28', *wheels],
                   check=True)
    emulated = root / 'usr/bin' / f'python{version}'
    # QEMU_LD_PREFIX is where qemu looks first for the loader and the libraries.
    variables = {'PATH': os.environ['PATH'], 'QEMU_LD_PREFIX': str(root), 'PYTHONPATH': str(site)}
    kernel = subprocess.run([emulated, '-P', '-c', KERNELS], env=variables, stdout=subprocess.PIPE, text=True,
                            check=False).stdout.strip()
    if kernel != EXPECTED_KERNEL:
        raise Refused(f'the wheel chooses the kernel {kernel or "of no name"}, expected {EXPECTED_KERNEL}')
    program = pathlib.Path('packaging/smoke.py').absolute()
    # In the directory of the tree, the broker would import the modules of the tree.
    done = subprocess.run([emulated, program], env=variables, cwd=site, check=False)
    if done.returncode != 0:
        raise Refused(f'packaging/smoke.py ended with exit status {done.returncode}, expected 0')
    print(f'{wheels[0].name}: served under qemu, with the kernel {kernel}')


def check_emulator():
    """Check that the kernel starts programs for aarch64 through qemu, also those that Python starts."""
    if shutil.which('qemu-aarch64-static') is None:
        raise Refused('found no qemu-aarch64-static. To install it: apt install qemu-user-static')
    handlers = BINFMT.glob('*aarch64*')
    if not any(handler.read_text().startswith('enabled') for handler in handlers):
        raise Refused(f'found no enabled handler for aarch64 in {BINFMT}, with which the kernel starts its programs. '
                      f'As root: mount -t binfmt_misc binfmt_misc {BINFMT}; '
                      f'cat /usr/lib/binfmt.d/qemu-aarch64.conf > {BINFMT}/register')


if __name__ == '__main__':
    main()
