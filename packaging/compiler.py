"""The check for a C compiler and the headers of Python, before anything is fetched or compiled.

`make` runs this file as a program, and setup.py calls `check`. It needs only the standard library.
"""
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile

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


def command():
    """Return the words of the command that compiles."""
    return shlex.split(os.environ.get('CC') or sysconfig.get_config_var('CC') or 'cc')


def compiled(program, *options):
    """Compile a program with these options. Return the finished process of the compiler."""
    with tempfile.TemporaryDirectory() as directory:
        return subprocess.run([*command(), *options, '-o', os.path.join(directory, 'compiled'), '-x', 'c', '-'],
                              input=program, text=True, capture_output=True, check=False,
                              env=os.environ | {'LC_ALL': 'C'})


def takes(*options):
    """Return whether the compiler and its linker take these options.

    Clang lacks some options of GCC, and Apple's linker some of GNU's.
    """
    return compiled('', '-shared', '-fPIC', *options).returncode == 0


def fault():
    """Return in one line why nothing can be compiled, or None if compiling is possible."""
    compiler = command()[0]
    if shutil.which(compiler) is None:
        return f'found no C compiler ({compiler}), and kbroker is compiled when it is installed. {remedy()}'
    includes = [f'-I{sysconfig.get_path(name)}' for name in ('include', 'platinclude')]
    flags = shlex.split(os.environ.get('CPPFLAGS', '') + ' ' + os.environ.get('CFLAGS', ''))
    done = compiled(PROGRAM, *flags, *includes, '-c')   # not -fsyntax-only, after which zig looks for an output
    if done.returncode == 0:
        return None
    errors = [line.split('error: ')[1] for line in done.stderr.splitlines() if 'error: ' in line]
    error = errors[0] if errors else f'found exit status {done.returncode} without an error, expected 0'
    if error.startswith(('Python.h', "'Python.h'")):    # GCC and Clang
        return f'found no Python.h, the headers of {sys.executable} (Python {VERSION}). {remedy()}'
    return f'the C compiler ({compiler}) cannot compile a program with Python.h: {error}. {remedy()}'


def remedy():
    """Return the command that installs a compiler and the headers on this machine's distribution."""
    for program, command in PACKAGES.items():
        if shutil.which(program) is not None:
            return f'To install it: {command}'
    return f'Install a C compiler and the development files of Python {VERSION}'


def check_python():
    """End the program with one line if this is a free-threaded Python, on which kbroker is not tested."""
    if sysconfig.get_config_var('Py_GIL_DISABLED'):
        sys.exit(f'kbroker: found a free-threaded Python ({sys.executable}), expected one with the GIL: install '
                 f'python{VERSION} instead of python{VERSION}t')


def check():
    """End the program with one line if nothing can be compiled."""
    found = fault()
    if found is not None:
        sys.exit(f'kbroker: {found}')


if __name__ == '__main__':
    check_python()
    check()
