"""Builds the Cython extensions. Every other fact about the package is in pyproject.toml.

KBROKER_DEBUG=1 builds with bounds checks, asserts, line tracing and symbols. `make debug` runs the tests of the formats
on that build.
"""
import os
import pathlib
import runpy
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.modified import newer_group

DEBUG = os.environ.get('KBROKER_DEBUG') == '1'
JOBS = os.cpu_count() or 1
C_DIRECTORY = os.environ.get('KBROKER_C_DIRECTORY', 'build/cython-debug' if DEBUG else 'build/cython')

DIRECTIVES = {
    'language_level': 3,
    'embedsignature': True,
    # Nothing pickles or copies objects of compiled classes. Cython's methods for it were an eighth of the machine code.
    'auto_pickle': False,
    'boundscheck': DEBUG,
    'wraparound': DEBUG,
    'initializedcheck': DEBUG,
    'cdivision': not DEBUG,
    'linetrace': DEBUG,
}

SHARED_CODE = 'kbroker._shared'
"""The module that holds Cython's own helper functions. Without it each extension contains a copy of them."""

STARTUP_FILE = 'kbroker_tools/spark/autoload/kbroker_spark.pth'

PACKAGES = ('kbroker', 'kbroker_tools')

KERNELS = ('kbroker.record.', 'kbroker.wire.', 'kbroker.log.', 'kbroker.client.partitioner',
           'kbroker.client.columns_to_send')
"""The modules with loops over bytes, which are compiled at -O2."""

BETWEEN_O1_AND_O2 = (
    '-O1', '-finline-functions', '-finline-small-functions', '-fcaller-saves', '-fipa-ra', '-fexpensive-optimizations',
    '-ftree-vrp', '-fthread-jumps', '-fstore-merging', '-fpeephole2', '-fcrossjumping', '-ftree-tail-merge',
    '-ftree-switch-conversion', '-freorder-blocks-and-partition')
"""The options of all other modules, which handle objects and call the system.

Compared with -O2 they add half a percent to the instructions of a request, and take two thirds of the time to compile.
Only GCC has them. Other compilers get -O2 for these modules, too.
"""

WITHOUT_UNWINDING = '-fno-asynchronous-unwind-tables'
"""C raises no exceptions, so only debuggers and profilers of C would read these tables, which take 5% of a wheel."""
WITHOUT_SYMBOLS = '-Wl,--strip-all'

IS_FOR_MACOS = sysconfig.get_platform().startswith('macosx-')     # a cross build sets _PYTHON_HOST_PLATFORM

LINUX_ONLY = (
    'kbroker.network.', 'kbroker.wire.frames', 'kbroker.apis.add_partitions_to_txn', 'kbroker.apis.end_txn',
    'kbroker.apis.fetch.fetch', 'kbroker.apis.fetch.response', 'kbroker.apis.offset_commit', 'kbroker.apis.produce.',
    'kbroker.apis.serving.dispatch', 'kbroker.apis.serving.idle_heartbeat', 'kbroker.apis.serving.offset_commits',
    'kbroker.apis.serving.request', 'kbroker.apis.txn_offset_commit')
"""The modules of a serving broker, which needs Linux. Each other module belongs to the client, the tools and the
commands, which run on macOS, too. A name that ends with a dot stands for a whole package.
"""


def needs_linux(name):
    """Return whether a module is one of LINUX_ONLY."""
    return any(name == each or (each.endswith('.') and name.startswith(each)) for each in LINUX_ONLY)


def extension_of(path):
    name = '.'.join(path.with_suffix('').parts)
    return Extension(name, [str(path)], include_dirs=['kbroker/wire'])


def add_options(extensions):
    """Add the options of the compiler and the linker. Both are asked only once which options they take."""
    takes = runpy.run_path('packaging/compiler.py')['takes']
    others = BETWEEN_O1_AND_O2 if not DEBUG and takes(*BETWEEN_O1_AND_O2) else ['-O2']
    small = [WITHOUT_UNWINDING] if takes(WITHOUT_UNWINDING) else []
    link_options = [] if DEBUG or not takes(WITHOUT_SYMBOLS) else [WITHOUT_SYMBOLS]
    for extension in extensions:
        extension.extra_compile_args = ['-O0', '-g', '-UNDEBUG'] if DEBUG else [
            '-g0', *small, *(['-O2'] if extension.name.startswith(KERNELS) else others)]
        extension.extra_link_args = link_options


class Build(build):
    """A build that checks for a compiler before it copies the first file."""

    def run(self):
        check_compiler()
        super().run()


class BuildExtensions(build_ext):
    """A command that translates to C in parallel, then compiles in parallel, and shows the progress of both.

    The translation is part of this command because pip also runs setup.py for the metadata, which needs no translation.
    """

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or JOBS

    def run(self):
        check_compiler()
        if self.inplace:
            remove_left_extensions()
        super().run()

    def build_extensions(self):
        from Cython.Build import cythonize
        translated = cythonize(self.extensions, nthreads=JOBS, build_dir=C_DIRECTORY, compiler_directives=DIRECTIVES,
                               shared_utility_qualified_name=SHARED_CODE)
        for extension, with_c in zip(self.extensions, translated, strict=True):
            extension.sources = with_c.sources
            extension.depends = [*with_c.depends, __file__]     # a change of the compile options rebuilds the extension
        add_options(self.extensions)    # behind the translation, because the C files contain the options
        self.waiting = [extension.name for extension in self.extensions if self.is_outdated(extension)]
        self.number = len(self.waiting)
        # The largest sources come first, so that no core has a long job left at the end.
        self.extensions.sort(key=lambda extension: -os.path.getsize(extension.sources[0]))
        super().build_extensions()

    def is_outdated(self, extension):
        return self.force or newer_group(extension.sources + extension.depends,
                                         self.get_ext_fullpath(extension.name), 'newer')

    def build_extension(self, extension):
        if extension.name in self.waiting:
            self.waiting.remove(extension.name)
            print(f'[{self.number - len(self.waiting)}/{self.number}] Compiling {extension.name}', flush=True)
        super().build_extension(extension)


class BuildModules(build_py):
    """A command that adds `kbroker_spark.pth` next to the packages, where Python reads it at its start."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_file(STARTUP_FILE, self.startup_target())

    def startup_target(self):
        return os.path.join(self.build_lib, os.path.basename(STARTUP_FILE))

    def get_outputs(self, include_bytecode=1):
        outputs = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, self.startup_target()]

    def get_source_files(self):
        return [*super().get_source_files(), STARTUP_FILE]


def remove_left_extensions():
    """Remove extensions that earlier builds left in the tree for modules that have moved since.

    Python would import them.
    """
    for path in [path for package in PACKAGES for path in pathlib.Path(package).rglob('*.so')]:
        source = path.with_name(path.name.partition('.')[0]).with_suffix('.pyx')
        if not source.exists() and path.name.partition('.')[0] != '_shared':
            path.unlink()


def check_compiler():
    """End the program with one line if there is no compiler. pip shows this line instead of the errors of each file."""
    runpy.run_path('packaging/compiler.py')['check']()


def check_python():
    """End the program with one line if this Python is not supported. pip shows this line."""
    runpy.run_path('packaging/compiler.py')['check_python']()


def main():
    sources = sorted(source for package in PACKAGES
                     for source in pathlib.Path(package).rglob('*.pyx'))
    check_python()
    archives = runpy.run_path('packaging/archives.py')
    extensions = [*map(extension_of, sources), extension_of(pathlib.Path('kbroker/_shared.c'))]
    setup(
        long_description=runpy.run_path('packaging/readme.py')['text'](),
        long_description_content_type='text/markdown',
        cmdclass={'build': Build, 'build_ext': BuildExtensions, 'build_py': BuildModules,
                  'sdist': archives['SameSdist'], 'bdist_wheel': archives['SameWheel']},
        ext_modules=[each for each in extensions if not (IS_FOR_MACOS and needs_linux(each.name))],
    )


# From Python 3.14 on, the processes that translate are new ones, which import this file again.
if __name__ == '__main__':
    main()
