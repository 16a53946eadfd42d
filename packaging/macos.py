"""Compiles the modules of the client, the tools and the commands for macOS, and checks what they need from the system.

`make macos` runs it. It needs no Mac: Zig brings a compiler, the headers and the list of what the system library of
macOS exports. Nothing is run: a module that compiles can still fail on a Mac.
"""
import os
import pathlib
import re
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).parents[1]
BUILD = ROOT / 'build/macos'
TARGETS = {'aarch64-macos.11.0': 'macosx-11.0-arm64', 'x86_64-macos.11.0': 'macosx-11.0-x86_64'}
"""The names of each target: Zig's, and that of the platform in Python."""
OPTIONS_OF_LINUX = ('_GNU_SOURCE', '_POSIX_C_SOURCE', '_XOPEN_SOURCE', '_XOPEN_SOURCE_EXTENDED')
"""The macros in pyconfig.h that hide parts of macOS's headers. Python leaves them out there."""

MACH_O, SYMBOL_TABLE = 0xfeedfacf, 2
IS_UNDEFINED, KIND_OF_SYMBOL, FOUND_AT_LOAD = 0, 0x0e, 0xfe


def write_headers():
    """Copy the headers of this Python, with a pyconfig.h for macOS. The other headers do not depend on the system."""
    headers = BUILD / 'include'
    shutil.rmtree(headers, ignore_errors=True)
    shutil.copytree(sysconfig.get_path('include'), headers)
    config = (headers / 'pyconfig.h').read_text()
    for name in OPTIONS_OF_LINUX:
        config = re.sub(rf'^#define {name}\b.*$', '', config, flags=re.MULTILINE)
    (headers / 'pyconfig.h').write_text(config + '#define _DARWIN_C_SOURCE 1\n')
    return headers


def build(zig, target, platform, headers):
    """Compile all modules for a target, and return the paths of the extensions."""
    directory = BUILD / target
    shutil.rmtree(directory, ignore_errors=True)
    compiler = f'{shlex.quote(zig)} -m ziglang cc -target {target}'
    subprocess.run(
        [sys.executable, 'setup.py', '--quiet', 'build_ext', '--build-lib', directory / 'lib', '--build-temp',
         directory / 'temp'], cwd=ROOT, check=True,
        env=os.environ | {'CC': compiler, 'LDSHARED': f'{compiler} -shared -undefined dynamic_lookup',
                          'CFLAGS': f'-I{headers}', '_PYTHON_HOST_PLATFORM': platform,
                          'SETUPTOOLS_EXT_SUFFIX': '.so'})
    return sorted((directory / 'lib').rglob('*.so'))


def missing_symbols(extension):
    """Return the names that the dynamic linker of macOS would search for in Python, and that are not Python's."""
    return [name for name in symbols_found_at_load(extension) if not name.startswith(('_Py', '__Py'))]


def symbols_found_at_load(extension):
    """Yield the undefined names of a Mach-O file that no library of the link exports."""
    data = extension.read_bytes()
    magic, _, _, _, commands = struct.unpack_from('<IiiII', data)
    if magic != MACH_O:
        sys.exit(f'{extension}: found the magic number {magic:#x}, expected a Mach-O file')
    position = 32
    for _ in range(commands):
        command, size = struct.unpack_from('<II', data, position)
        if command == SYMBOL_TABLE:
            at, count, names, _ = struct.unpack_from('<IIII', data, position + 8)
            for number in range(count):
                name, kind, _, description, _ = struct.unpack_from('<IBBHQ', data, at + 16 * number)
                if kind & KIND_OF_SYMBOL == IS_UNDEFINED and description >> 8 == FOUND_AT_LOAD:
                    start = names + name
                    yield data[start:data.index(0, start)].decode()
        position += size


def main(zig):
    """Build and check each target, with the Python `zig` in whose environment Zig is installed."""
    headers = write_headers()
    failed = False
    for target, platform in TARGETS.items():
        extensions = build(zig, target, platform, headers)
        missing = {str(extension.relative_to(BUILD)): missing_symbols(extension) for extension in extensions}
        for extension, names in missing.items():
            if names:
                failed = True
                print(f'{extension}: found {", ".join(names)}, which macOS does not have', file=sys.stderr)
        print(f'{platform}: {len(extensions)} modules compile')
    sys.exit(failed)


if __name__ == '__main__':
    main(*sys.argv[1:])
