"""The check for a C compiler and the headers of Python, before anything is fetched or compiled.

`make` runs this file as a program, and setup.py calls `check`. It needs only the standard library.
"""
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig

PROGRAM = '#include <Python.h>\nint main(void) { return 0; }\n'

VERSION = f'{sys.version_info.major}.{sys.version_info.minor}'

PACKAGES = {
    'apt-get': f'apt install gcc libc6-dev python{VERSION}-dev',
    'dnf': 'dnf install gcc python3-devel',
    'zypper': f'zypper install gcc python{VERSION.replace(".", "")}-devel',
    'pacman': 'pacman -S gcc python',
    'apk': 'apk add gcc musl-dev linux-headers python3-dev',
}
"""The command that installs a compiler and the headers, by the package manager of a distribution."""


def fault():
    """Return in one line why nothing can be compiled, or None if compiling is possible."""
    compiler = shlex.split(os.environ.get('CC') or sysconfig.get_config_var('CC') or 'cc')
    if shutil.which(compiler[0]) is None:
        return f'found no C compiler ({compiler[0]}), and kbroker is compiled when it is installed. {remedy()}'
    includes = [f'-I{sysconfig.get_path(name)}' for name in ('include', 'platinclude')]
    flags = shlex.split(os.environ.get('CPPFLAGS', '') + ' ' + os.environ.get('CFLAGS', ''))
    done = subprocess.run([*compiler, *flags, *includes, '-fsyntax-only', '-x', 'c', '-'], input=PROGRAM, text=True,
                          capture_output=True, check=False, env=os.environ | {'LC_ALL': 'C'})
    if done.returncode == 0:
        return None
    errors = [line.split('error: ')[1] for line in done.stderr.splitlines() if 'error: ' in line]
    error = errors[0] if errors else f'found exit status {done.returncode} without an error, expected 0'
    if error.startswith(('Python.h', "'Python.h'")):    # GCC and Clang
        return f'found no Python.h, the headers of {sys.executable} (Python {VERSION}). {remedy()}'
    return f'the C compiler ({compiler[0]}) cannot compile a program with Python.h: {error}. {remedy()}'


def remedy():
    """Return the command that installs a compiler and the headers on this machine's distribution."""
    for program, command in PACKAGES.items():
        if shutil.which(program) is not None:
            return f'To install it: {command}'
    return f'Install a C compiler and the development files of Python {VERSION}'


def check():
    """End the program with one line if nothing can be compiled."""
    found = fault()
    if found is not None:
        sys.exit(f'kbroker: {found}')


if __name__ == '__main__':
    check()
