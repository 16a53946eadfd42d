"""The examples in docs/examples: tests of an application in Java, Go and Node.js, which control a broker."""
import os
import subprocess
import textwrap

import pytest
from support.brokers.broker_process import ROOT
from support.kafka.apache_kafka import compiled
from support.runner.command_runner import install_programs
from support.runner.machine_requirements import JUDGES, fetching
from support.runner.node_packages import beside_packages
from support.runner.pages import blocks

pytestmark = pytest.mark.timeout(600)

EXAMPLES = ROOT / 'docs' / 'examples'
FETCH_LIMIT_S, LIMIT_S = 500, 500
JAVA = ('-Xmx256m', '-XX:+UseSerialGC', '-XX:TieredStopAtLevel=1')


@pytest.fixture
def environment(tmp_path):
    """The variables with which the examples find `kbroker`, and leave their files in the directory of the test."""
    install_programs(tmp_path / 'bin')
    return os.environ | {'PATH': f'{tmp_path / "bin"}:{os.environ["PATH"]}', 'TMPDIR': str(tmp_path)}


def run(command, environment, directory):
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False, env=environment,
                          cwd=directory)
    assert done.returncode == 0, done.stdout
    return done.stdout


def leftovers(directory):
    return [path.name for path in directory.iterdir() if path.name.startswith('kbroker-')]


@pytest.mark.jvm
def test_the_example_of_junit_passes(environment, tmp_path):
    classes = compiled(EXAMPLES / 'java')
    printed = run(['java', *JAVA, f'-Djava.io.tmpdir={tmp_path}', '-cp', classes,
                   'org.junit.platform.console.ConsoleLauncher', 'execute', '--disable-banner', '--fail-if-no-tests',
                   '--select-class=PaymentsTest'], environment, tmp_path)
    assert '4 tests successful' in printed
    assert leftovers(tmp_path) == []


def test_the_example_on_the_page_is_part_of_the_directory():
    shown, = blocks('docs/testing.md', 'java')
    file = EXAMPLES / 'java' / 'src' / 'test' / 'java' / 'PaymentsTest.java'
    assert textwrap.indent(shown, '    ') in file.read_text()


@pytest.mark.go
def test_the_example_of_go_passes(environment, tmp_path):
    program = JUDGES / 'go' / 'example.test'
    with fetching():
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(['go', 'test', '-c', '-o', str(program), '.'], cwd=EXAMPLES / 'go', check=True,
                       stdin=subprocess.DEVNULL, timeout=FETCH_LIMIT_S)
    printed = run([program, '-test.v'], environment, tmp_path)
    assert printed.count('\n--- PASS') == 4 and printed.count('    --- PASS: ') > 3, printed
    assert leftovers(tmp_path) == []


@pytest.mark.node
def test_the_example_of_node_passes(environment, tmp_path):
    place = beside_packages(EXAMPLES / 'nodejs', 'kbroker.mjs', 'payments.test.mjs')
    printed = run(['node', place / 'node_modules' / 'vitest' / 'vitest.mjs', 'run', '--no-cache', '--root', place],
                  environment | {'NO_COLOR': '1'}, tmp_path)
    assert '4 passed' in printed
    assert leftovers(tmp_path) == []
