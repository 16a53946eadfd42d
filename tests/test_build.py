"""The build reports clearly why it cannot compile, and several versions of Python can use the same source tree."""
import os
import runpy
import subprocess
import sys
import tomllib

import pytest
from setuptools import Extension
from support.brokers.broker_process import ROOT
from support.runner.packages_without_wheels import packages_left_out

COMPILER = str(ROOT / 'packaging' / 'compiler.py')


def run(*arguments, **environment):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=os.environ | environment, capture_output=True,
                          text=True, check=False)


def test_a_compiler_that_is_there_is_not_mentioned():
    done = run(COMPILER)
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')


@pytest.mark.parametrize('command', [[COMPILER], ['setup.py', '--quiet', 'build_ext', '--inplace'],
                                     ['setup.py', '--quiet', 'bdist_wheel']], ids=['make', 'in place', 'pip'])
def test_without_a_compiler_one_line_names_the_package_before_anything_is_built(command):
    """In an earlier version, Cython first translated each file, and pip then printed a hundred lines."""
    done = run(*command, CC='no-such-compiler -pthread')
    assert (done.returncode, done.stdout) == (1, '')
    assert done.stderr.startswith('kbroker: found no C compiler (no-such-compiler), and kbroker is compiled when it')
    assert done.stderr.count('\n') == 1


def fault(tmp_path, monkeypatch, program, compiler=None):
    """Return the fault that the build reports for a Python without headers, on a machine whose only package manager is
    `program`.
    """
    checker = runpy.run_path(COMPILER)
    (tmp_path / program).write_text('#!/bin/sh\n')
    (tmp_path / program).chmod(0o755)
    monkeypatch.setattr(checker['sysconfig'], 'get_path', lambda name: str(tmp_path))
    monkeypatch.setenv('CC', checker['shutil'].which('cc'))
    if compiler is not None:
        (tmp_path / 'Python.h').write_text(compiler)
    monkeypatch.setenv('PATH', f'{tmp_path}')
    return checker['fault']()


@pytest.mark.parametrize(('program', 'command'), [
    ('apt-get', f'apt install gcc libc6-dev python{sys.version_info.major}.{sys.version_info.minor}-dev'),
    ('apk', 'apk add gcc musl-dev linux-headers python3-dev')])
def test_without_the_headers_of_python_the_package_of_the_distribution_is_named(program, command, tmp_path,
                                                                                 monkeypatch):
    found = fault(tmp_path, monkeypatch, program)
    assert found.startswith('found no Python.h, the headers of ')
    assert found.endswith(f'To install it: {command}')


def test_a_compiler_without_its_own_headers_is_reported_in_its_words(tmp_path, monkeypatch):
    found = fault(tmp_path, monkeypatch, 'dnf', '#include <no_such_header.h>\n')
    assert 'cannot compile a program with Python.h: ' in found and 'no_such_header.h' in found
    assert found.endswith('To install it: dnf install gcc python3-devel') and '\n' not in found


SMALL = '-fno-asynchronous-unwind-tables'


def options_with(refused, name, tmp_path, monkeypatch):
    """Return the options for an extension with a compiler that refuses the option `refused`."""
    compiler = tmp_path / 'compiler'
    compiler.write_text(f'#!/bin/sh\ncase " $* " in *" {refused} "*) exit 1;; esac\n')
    compiler.chmod(0o755)
    monkeypatch.setenv('CC', str(compiler))
    monkeypatch.chdir(ROOT)
    extension = Extension(name, [])
    runpy.run_path('setup.py')['add_options']([extension])
    return extension.extra_compile_args, extension.extra_link_args


def test_a_compiler_gets_only_options_that_it_has(tmp_path, monkeypatch):
    assert options_with('-no-such-option', 'kbroker.daemon.broker', tmp_path, monkeypatch) == (
        ['-g0', SMALL, *runpy.run_path('setup.py')['BETWEEN_O1_AND_O2']], ['-Wl,--strip-all'])
    assert options_with('-fipa-ra', 'kbroker.daemon.broker', tmp_path, monkeypatch) == (
        ['-g0', SMALL, '-O2'], ['-Wl,--strip-all'])
    assert options_with('-Wl,--strip-all', 'kbroker.wire.crc32c', tmp_path, monkeypatch) == (
        ['-g0', SMALL, '-O2'], [])


def test_a_process_of_the_build_that_imports_setup_again_builds_nothing(monkeypatch):
    """In an earlier version, the build failed on Python 3.14, whose child processes import the program that starts
    them.
    """
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr('setuptools.setup', lambda **given: pytest.fail('setup was called'))
    runpy.run_path('setup.py', run_name='__mp_main__')


BACKEND = f"import sys; sys.path.insert(0, {str(ROOT / 'packaging')!r}); import backend; "


@pytest.mark.parametrize('hook', ['get_requires_for_build_wheel', 'get_requires_for_build_editable'])
def test_pip_reports_a_missing_compiler_before_it_fetches_anything(hook):
    """In an earlier version, pip first fetched setuptools and Cython."""
    build = tomllib.loads((ROOT / 'pyproject.toml').read_text())['build-system']
    assert (build['requires'], build['build-backend'], build['backend-path']) == ([], 'backend', ['packaging'])
    done = run('-S', '-c', f'{BACKEND}backend.{hook}()', CC='no-such-compiler')     # without setuptools
    assert (done.returncode, done.stdout) == (1, '')
    assert done.stderr.startswith('kbroker: found no C compiler (no-such-compiler)') and done.stderr.count('\n') == 1
    done = run('-S', '-c', f'{BACKEND}print(backend.{hook}())')
    assert 'cython>=' in done.stdout and 'setuptools>=' in done.stdout


def test_an_sdist_needs_no_compiler():
    done = run('-S', '-c', f'{BACKEND}print(backend.get_requires_for_build_sdist())', CC='no-such-compiler')
    assert 'setuptools>=' in done.stdout and done.stderr == ''


def test_each_version_of_python_gets_the_packages_that_have_wheels_for_it():
    assert packages_left_out({'python_version': '3.14'}) == {}
    assert packages_left_out({'python_version': '3.15'}) == {
        'confluent_kafka': 'confluent-kafka', 're2': 'google-re2', 'moto': 'moto', 'boto3': 'moto',
        'deltalake': 'deltalake', 'fastavro': 'fastavro', 'pyiceberg': 'pyiceberg'}


def test_a_test_of_a_package_without_a_wheel_is_skipped_with_the_reason(tmp_path):
    (tmp_path / 'conftest.py').write_text(
        'import sys\n'
        f'sys.path.insert(0, {str(ROOT / "tests")!r})\n'
        'from support.runner.packages_without_wheels import SkipImports\n'
        "sys.meta_path.append(SkipImports({'no_such_module': 'no-such-package'}))\n")
    (tmp_path / 'test_file.py').write_text('import no_such_module\n\ndef test_one():\n    pass\n')
    (tmp_path / 'test_inside.py').write_text('def test_two():\n    import no_such_module\n')
    (tmp_path / 'test_missing.py').write_text('def test_three():\n    import some_other_module\n')
    done = run('-m', 'pytest', '-ra', '-p', 'no:cacheprovider', '--rootdir', str(tmp_path), str(tmp_path))
    reason = f'no-such-package has no wheel for Python {sys.version_info.major}.{sys.version_info.minor}'
    assert 'SKIPPED [2] ' in done.stdout and reason in done.stdout
    assert '1 failed, 2 skipped' in done.stdout


def test_the_lowest_versions_are_those_that_pyproject_names():
    done = run('packaging/lowest.py')
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    for each in [*project['dependencies'], *project['optional-dependencies']['spark']]:
        assert each.replace('>=', '==') in lines and '>=' in each
    assert len(lines) == len(set(lines))


def test_a_build_in_place_removes_the_extensions_of_modules_that_have_moved(tmp_path, monkeypatch):
    """In an earlier version, the compiled `apis/dispatch` remained when its source moved to `apis/serving/dispatch`,
    and the broker imported both.
    """
    monkeypatch.chdir(tmp_path)
    for name in ('kbroker/_shared.x.so', 'kbroker/log/log.x.so', 'kbroker/log/log.pyx', 'kbroker/apis/moved.x.so',
                 'kbroker_tools/moved.x.so'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    runpy.run_path(str(ROOT / 'setup.py'))['remove_left_extensions']()
    assert sorted(path.name for path in tmp_path.rglob('*.so')) == ['_shared.x.so', 'log.x.so']
