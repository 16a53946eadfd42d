"""The extensions, and nothing else: every fact about the package stands in pyproject.toml.

KBROKER_DEBUG=1 builds with bounds checks, asserts and line tracing; the tests of the formats run on such a build too.
"""
import os
import pathlib

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get('KBROKER_DEBUG') == '1'
DIRECTIVES = {
    'language_level': 3,
    'embedsignature': True,
    'boundscheck': DEBUG,
    'wraparound': DEBUG,
    'initializedcheck': DEBUG,
    'cdivision': not DEBUG,
    'linetrace': DEBUG,
}

sources = sorted(source for package in ('kbroker', 'kbroker_tools') for source in pathlib.Path(package).rglob('*.pyx'))
JOBS = os.cpu_count() or 1


def compiled(paths):
    extensions = [
        Extension(
            '.'.join(path.with_suffix('').parts),
            [str(path)],
            extra_compile_args=['-O0', '-g', '-UNDEBUG'] if DEBUG else ['-O2'],
            include_dirs=['kbroker/wire'],
        )
        for path in paths
    ]
    return cythonize(extensions, compiler_directives=DIRECTIVES, nthreads=JOBS,
                     build_dir='build/cython-debug' if DEBUG else 'build/cython')


setup(
    ext_modules=compiled(sources),
    options={'build_ext': {'parallel': JOBS}},
)
