"""The client, the tools and the commands work where the system is not Linux, and what a broker cannot do without is one
line.

The processes of these tests run on Linux, without what macOS lacks: see tests/support/without_linux.
"""
import os
import pathlib
import re
import runpy
import subprocess
import sys
import types

import pytest
import test_import_cycles
from support.brokers.broker_process import ROOT

PORTABLE = ('kbroker_tools', 'kbroker.client', 'kbroker.daemon.main', 'kbroker.daemon.status')
"""The beginnings of the names of the modules with which a person on macOS starts."""
SERVES = (('kbroker.daemon.main', 'kbroker.daemon.broker'), ('kbroker.daemon.main', 'kbroker.daemon.controlling'),
          ('kbroker_tools.commands.exporter', 'kbroker_tools.exporter.serving'),
          ('kbroker_tools.commands.proxy', 'kbroker_tools.proxy.controlling'))
"""The imports that only `kbroker serve`, an exporter that serves and a proxy with a control port make."""
QUICK_TESTS = ('tests/tools/test_tools_directory_live.py', 'tests/client/test_client_face.py')
WITHOUT_LINUX = os.environ | {'PYTHONPATH': str(ROOT / 'tests/support/without_linux')}


def import_graph():
    """Return {module: modules that it imports}, in which an import of a tool counts, too."""
    pattern = re.compile(test_import_cycles.IMPORT.pattern.replace(r'kbroker[\w.]*', r'kbroker(?:_tools)?[\w.]*'),
                         re.MULTILINE)
    paths = [path for package in ('kbroker', 'kbroker_tools') for path in (ROOT / package).rglob('*')
             if path.suffix in {'.py', '.pyx', '.pxd'}]
    modules = {test_import_cycles.module_of(path) for path in paths}
    graph = {module: set() for module in modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_import_cycles, 'IMPORT', pattern)
        for path in paths:
            graph[test_import_cycles.module_of(path)] |= test_import_cycles.imports_of(path.read_text(), modules)
    return graph


def test_macos_gets_exactly_the_modules_that_the_client_the_tools_and_the_commands_import():
    graph = import_graph()
    for module, serving in SERVES:
        graph[module].remove(serving)
    used = {serving for _, serving in SERVES}
    left = [module for module in graph if f'{module}.'.startswith(tuple(f'{name}.' for name in PORTABLE))]
    while left:
        module = left.pop()
        if module not in used:
            used.add(module)
            left += graph[module]
    compiled = {test_import_cycles.module_of(path) for package in ('kbroker', 'kbroker_tools')
                for path in (ROOT / package).rglob('*.pyx')}
    needs_linux = runpy.run_path(str(ROOT / 'setup.py'))['needs_linux']
    assert {module for module in compiled if needs_linux(module)} == compiled - used


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=WITHOUT_LINUX, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)


def test_an_exporter_says_in_one_line_that_serving_needs_linux():
    program = 'from kbroker_tools.commands.exporter import main; main(["--bootstrap-server", "127.0.0.1:1"])'
    done = run('-c', program)
    assert done.returncode == 1
    assert 'found the system darwin, expected Linux' in done.stderr
    assert done.stderr.count('\n') == 1


def test_tests_of_the_client_and_the_tools_pass_without_what_only_linux_has():
    done = run('-m', 'pytest', '-n', '0', '-q', '-p', 'no:cacheprovider', '--quick', '--once', *QUICK_TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize('arguments', [['--help'], ['config'], ['storage', '--data-dir', '{}'],
                                       ['hand-over', '--data-dir', '{}']], ids=lambda arguments: arguments[0])
def test_a_command_of_kbroker_that_serves_nothing_works_without_linux(arguments, tmp_path):
    if arguments[0] == 'hand-over':
        assert run('-m', 'kbroker', 'storage', '--data-dir', str(tmp_path)).returncode == 0
    done = run('-m', 'kbroker', *(each.format(tmp_path) for each in arguments))
    assert (done.returncode, done.stderr.count('Traceback')) == (0, 0), done.stderr


def test_the_status_names_the_missing_broker_without_linux(tmp_path):
    done = run('-m', 'kbroker', 'status', '--data-dir', str(tmp_path))
    assert (done.returncode, done.stderr) == (1, f'kbroker: no broker runs on {tmp_path}\n')


def test_serve_says_in_one_line_that_it_needs_linux(tmp_path):
    # The name of the command is built, because a process whose arguments have it stays on Linux.
    program = f'from kbroker.daemon.main import main; main(["ser" "ve", "--data-dir", {str(tmp_path / "data")!r}])'
    done = run('-c', program)
    assert done.returncode == 1
    assert done.stderr.startswith('kbroker: serve: found the system darwin, expected Linux')
    assert done.stderr.count('\n') == 1
    assert not (tmp_path / 'data').exists()


def broker_without(call, error, directory):
    """Start a broker for which a system call fails always. Return the lines until it ends or is ready."""
    process = subprocess.Popen(
        ['strace', '-f', '-q', '-o', '/dev/null', '-e', f'trace={call}', f'--inject={call}:error={error}',
         sys.executable, '-m', 'kbroker', 'serve', '--listen', '127.0.0.1:0', '--data-dir', str(directory)],
        cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lines = []
    try:
        for line in process.stderr:
            lines.append(line)
            if ' ready on ' in line:
                break
        else:
            process.wait()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    return lines, process.returncode


@pytest.mark.strace
@pytest.mark.parametrize(('call', 'error'), [('epoll_create1', 'ENOSYS'), ('eventfd2', 'EPERM')])
def test_a_kernel_that_refuses_what_the_loop_needs_is_named_in_one_line(call, error, tmp_path):
    lines, code = broker_without(call, error, tmp_path / 'data')
    assert code == 1
    assert len(lines) == 1 and lines[0].startswith(f'kbroker: {call}: ')
    assert 'permit it there' in lines[0]


@pytest.mark.strace
@pytest.mark.parametrize('refused', ['ENOSYS', 'EPERM'])
def test_a_broker_serves_on_a_kernel_without_preadv2_and_fallocate(refused, tmp_path):
    """Linux before 4.6 has no preadv2. The filter of an old container refuses a call that it does not know with EPERM.
    """
    trace = tmp_path / 'trace'
    done = subprocess.run(
        ['strace', '-f', '-q', '--seccomp-bpf', '-o', str(trace), '-e', 'trace=preadv2,fallocate',
         f'--inject=preadv2:error={refused}', '--inject=fallocate:error=ENOSYS', sys.executable,
         'packaging/smoke.py'], cwd=ROOT, env=os.environ | {'PYTHONPATH': str(ROOT)}, capture_output=True, text=True,
        check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    failed = {line.split('(')[0].split()[-1] for line in trace.read_text().splitlines() if '(INJECTED)' in line}
    assert failed == {'preadv2', 'fallocate'}


def test_a_free_threaded_python_is_refused_in_one_line_by_the_build(monkeypatch):
    checker = runpy.run_path(str(ROOT / 'packaging/compiler.py'))
    monkeypatch.setattr(checker['sysconfig'], 'get_config_var', lambda name: 1)
    with pytest.raises(SystemExit, match=r'^kbroker: found a free-threaded Python .*, expected one with the GIL'):
        checker['check_python']()


def test_a_free_threaded_python_is_refused_in_one_line_by_the_import(monkeypatch):
    monkeypatch.setattr(sys, 'abiflags', 't')
    source = (pathlib.Path(ROOT) / 'kbroker/__init__.py').read_text()
    with pytest.raises(ImportError, match=r'found a free-threaded Python .*, expected one with the GIL'):
        exec(source, types.ModuleType('kbroker').__dict__)
