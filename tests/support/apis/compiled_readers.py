"""The functions of request_readers.pyx, compiled when a test first needs them. They call C functions of the broker that
Python code cannot call.
"""
from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import sysconfig
from typing import Any

from support.runner.machine_requirements import locked

ROOT = pathlib.Path(__file__).parents[3]
SOURCE = pathlib.Path(__file__).with_name('request_readers.pyx')
DIRECTORY = ROOT / 'build' / 'tests' / sysconfig.get_config_var('SOABI')
PROGRAM = """
import sys
from Cython.Build import cythonize
from setuptools import Distribution, Extension
extensions = cythonize(
    [Extension('request_readers', [sys.argv.pop(1)], include_dirs=['kbroker/wire'], extra_compile_args=['-O0', '-g0'])],
    build_dir=sys.argv.pop(1), include_path=['.'], quiet=True)
readers = Distribution({'ext_modules': extensions, 'script_name': 'readers', 'script_args': sys.argv[1:]})
readers.parse_command_line()
readers.run_commands()
"""
"""It does not call `setup`, which would also read the project's pyproject.toml."""


def _load() -> Any:
    """Import the module. Compile it first if the C functions that it calls may have changed."""
    built = DIRECTORY / f'request_readers{sysconfig.get_config_var("EXT_SUFFIX")}'
    with locked(DIRECTORY / 'lock'):        # tests in several processes compile it once
        done = subprocess.run(
            [sys.executable, '-c', PROGRAM, str(SOURCE), str(DIRECTORY), '--quiet', 'build_ext',
             '--build-lib', str(DIRECTORY), '--build-temp', str(DIRECTORY)],
            cwd=ROOT, env=os.environ | {'PYTHONPATH': str(ROOT)}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        spec = importlib.util.spec_from_file_location('request_readers', built)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


readers = _load()
