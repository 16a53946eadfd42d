"""Fills the root of the image. mmdebstrap runs it, as root of a user namespace.

    fill_root.py WHEEL PYTHON MACHINE UV TOOLS_TAR ROOT

It installs kbroker, removes what no program of the image needs, and compiles Python's files, because the root is
read-only at run time. What only the other commands need goes to TOOLS_TAR.
"""
import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

USER, GROUP = 10001, 10001
TOOLS_ONLY = {'rich'}
"""The dependencies of kbroker that its broker does not import."""
TOOLS_EXTRAS = 'oauth'

UNUSED_PROGRAMS = ('bin', 'sbin', 'usr/sbin', 'usr/lib/apt', 'usr/lib/dpkg', 'usr/lib/systemd', 'usr/libexec',
                   'etc/cron.daily', 'etc/default', 'etc/logrotate.d', 'etc/skel', 'etc/update-motd.d',
                   'usr/share/python3')
"""The directories in which no file is needed. A directory that is a link stays. mmdebstrap empties those of apt."""
UNUSED_MODULES = ('idlelib', 'lib2to3', 'pydoc_data', 'test', 'tkinter', 'turtledemo', 'turtle.py', 'ensurepip', 'venv',
                  'distutils', '_pydecimal.py', 'sqlite3', 'dbm', 'curses', 'xmlrpc', 'config-3*')
UNUSED_EXTENSIONS = ('_sqlite3', '_dbm', '_gdbm', '_tkinter', '_curses', '_curses_panel', 'readline', 'nis', '_test*',
                     '_xxtestfuzz', '_ctypes_test', 'xxlimited*', 'audioop', 'ossaudiodev', 'spwd', '_crypt',
                     '_codecs_*')
UNUSED_LIBRARIES = ('gconv', 'audit', 'engines-3', 'sasl2', 'perl-base')
LOADED_BY_NAME = ('ld-linux', 'libnss_', 'libresolv', 'libgcc_s')
"""Libraries that the C library loads, and that therefore no file names."""
SOURCES = {'.pyx', '.pxd', '.pyi', '.h', '.c', '.java'}
"""The endings of files in packages that Python does not read."""

SHELL = '/usr/sbin/nologin'
FILES = {
    'etc/passwd': f'root:x:0:0:root:/root:{SHELL}\nkbroker:x:{USER}:{GROUP}:kbroker:/var/lib/kbroker:{SHELL}\n',
    'etc/group': f'root:x:0:\nkbroker:x:{GROUP}:\n',
    'etc/nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files dns\n',
}


def main():
    wheel, python, machine, uv, tools_tar, root = sys.argv[1:]
    root = pathlib.Path(root)
    packages = root / 'usr/local/lib' / f'python{python}' / 'dist-packages'
    with tempfile.TemporaryDirectory() as directory:
        broker, tools = pathlib.Path(directory) / 'broker', pathlib.Path(directory) / 'tools'
        install = [uv, 'pip', 'install', '--quiet', '--no-config', '--only-binary', ':all:', '--python-version', python,
                   '--python-platform', f'{machine}-manylinux_2_28', '--link-mode', 'copy', '--target']
        subprocess.run([*install, tools, f'{wheel}[{TOOLS_EXTRAS}]'], check=True)
        subprocess.run([*install, broker, *requirements_of_broker(wheel)], check=True)
        subprocess.run([*install, broker, '--no-deps', wheel], check=True)
        note_packages(root)
        add_packages(broker, packages, root, is_broker=True)
        only_tools = pathlib.Path(directory) / 'only-tools'
        add_packages(tools, only_tools / packages.relative_to(root), only_tools, is_broker=False)
        prune(root, python)
        add_files(root)
        compile_all(root, only_tools, python)
        remove_twins(only_tools, root)
        subprocess.run(['tar', '--sort=name', f'--mtime=@{os.environ["SOURCE_DATE_EPOCH"]}', '--owner=0', '--group=0',
                        '--numeric-owner', '-C', only_tools, '-cf', tools_tar, '.'], check=True)


def note_packages(root):
    """Note the packages of Debian where programs that search an image for vulnerable packages read them."""
    notes = root / 'var/lib/dpkg/status.d'
    notes.mkdir(parents=True)
    for package in (root / 'var/cache/apt/archives').glob('*.deb'):
        fields = subprocess.run(['dpkg-deb', '--field', package], check=True, capture_output=True, text=True).stdout
        (notes / re.search(r'^Package: (.*)', fields, re.MULTILINE)[1]).write_text(fields)


def requirements_of_broker(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name, = (name for name in archive.namelist() if name.endswith('.dist-info/METADATA'))
        required = email.message_from_bytes(archive.read(name)).get_all('Requires-Dist')
    return [text for text in required if 'extra ==' not in text and re.match(r'[\w-]+', text)[0] not in TOOLS_ONLY]


def add_packages(installed, packages, root, is_broker):
    """Move what uv installed to where the root's Python finds it, and the commands to where the shell would."""
    programs = root / 'usr/local/bin'
    programs.mkdir(parents=True, exist_ok=True)
    for program in installed.glob('bin/kbroker*'):
        if not is_broker or program.name == 'kbroker':
            text = program.read_text()
            (programs / program.name).write_text('#!/usr/bin/python3\n' + text.partition('\n')[2])
            (programs / program.name).chmod(0o755)
    shutil.rmtree(installed / 'bin')
    unused = ['kbroker_spark.pth', 'pyspark_kbroker', '.lock', *(['kbroker_tools'] if is_broker else [])]
    for name in unused:
        remove(installed / name)
    for path in sorted(installed.rglob('*'), reverse=True):
        # uv notes the time and the path of the wheel in files of its own.
        if path.suffix in SOURCES or path.name in ('uv_cache.json', 'direct_url.json', 'tests'):
            remove(path)
        elif path.suffix == '.so':
            subprocess.run(['strip', '--strip-unneeded', path], check=True)
    for record in installed.glob('*.dist-info/RECORD'):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text(''.join(line for line in lines if (installed / line.split(',')[0]).exists()))
    packages.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(installed, packages, dirs_exist_ok=True)
    for path in [packages, *packages.rglob('*')]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def prune(root, python):
    for name in UNUSED_PROGRAMS:
        directory = root / name
        if directory.is_dir() and not directory.is_symlink():
            for path in directory.iterdir():
                remove(path)
    for path in (root / 'usr/bin').iterdir():
        if path.name != f'python{python}':
            remove(path)
    (root / 'usr/bin/python3').symlink_to(f'python{python}')
    standard = root / 'usr/lib' / f'python{python}'
    for pattern in UNUSED_MODULES:
        for path in standard.glob(pattern):
            remove(path)
    for pattern in UNUSED_EXTENSIONS:
        for path in (standard / 'lib-dynload').glob(f'{pattern}.cpython-*'):
            remove(path)
    for path in sorted(root.glob('usr/share/zoneinfo/*')):
        if path.name in ('right', 'posix'):
            remove(path)
    bundle = root / 'etc/ssl/certs/ca-certificates.crt'
    bundle.parent.mkdir(parents=True, exist_ok=True)
    certificates = sorted((root / 'usr/share/ca-certificates').rglob('*.crt'))
    bundle.write_text(''.join(path.read_text() for path in certificates))
    remove(root / 'usr/share/ca-certificates')
    prune_libraries(root)


def prune_libraries(root):
    """Remove the shared libraries that no file of the root needs.

    Each round may free those that the last one needed.
    """
    directories = [*root.glob('lib/*-linux-gnu'), *root.glob('usr/lib/*-linux-gnu')]
    for directory in directories:
        for name in UNUSED_LIBRARIES:
            remove(directory / name)
    while True:
        libraries = [path for directory in directories for path in directory.glob('*.so*')]
        needed = {name for path in elf_files(root) for name in needs_of(path)}
        needed |= {os.readlink(path) for path in libraries if path.is_symlink() and path.name in needed}
        unneeded = [path for path in libraries
                    if path.name not in needed and not path.name.startswith(LOADED_BY_NAME)]
        if not unneeded:
            return
        for path in unneeded:
            remove(path)


def elf_files(root):
    # mmdebstrap has mounted /proc and /sys in the root.
    for path in (path for name in ('usr', 'lib', 'lib64') for path in (root / name).rglob('*')):
        if path.is_file() and not path.is_symlink() and path.open('rb').read(4) == b'\x7fELF':
            yield path


def needs_of(path):
    listed = subprocess.run(['readelf', '--dynamic', '--wide', path], check=True, capture_output=True, text=True).stdout
    return re.findall(r'\(NEEDED\).*\[(.+)\]', listed)


def add_files(root):
    for name, text in FILES.items():
        (root / name).write_text(text)
    settings = root / 'etc/kbroker/server.properties'
    settings.parent.mkdir()
    shutil.copy(pathlib.Path(__file__).with_name('server.properties'), settings)
    data = root / 'var/lib/kbroker'
    data.mkdir()
    data.chmod(0o750)
    os.chown(data, USER, GROUP)


def compile_all(root, only_tools, python):
    """Compile the modules of the root, and those of the tools as if they were in the root.

    Python trusts the bytecode without a look at the source, whose time the archive changes.
    """
    shutil.copytree(only_tools, root / 'tmp/tools')
    for options in (['/usr/lib/' + f'python{python}', '/usr/local/lib'], ['-s', '/tmp/tools', '/tmp/tools']):
        subprocess.run(['chroot', root, '/usr/bin/python3', '-B', '-m', 'compileall', '-q', '-j', '0',
                        '--invalidation-mode', 'unchecked-hash', *options], check=True)
    shutil.rmtree(only_tools)
    shutil.move(root / 'tmp/tools', only_tools)


def remove_twins(only_tools, root):
    """Remove from the tools what the root has."""
    for path in sorted(only_tools.rglob('*'), reverse=True):
        twin = root / path.relative_to(only_tools)
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif twin.exists():
            path.unlink()


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == '__main__':
    main()
