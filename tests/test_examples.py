"""The examples in the man pages and in the documents work if a reader types them."""
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest
from confluent_kafka import Producer
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.runner.command_runner import SCRIPTS, install_programs, main_of
from support.runner.pages import PAGES, ROOT, blocks, sessions, text_of
from support.spark.spark_machine import quick_start

from kbroker import __version__
from kbroker.daemon.main import main as kbroker_main
from kbroker.daemon.main import serve
from kbroker_tools.spark.sink.options import LEDGER_TOPIC


def examples_of_the_man_pages():
    specification = importlib.util.spec_from_file_location('man_examples', ROOT / 'man' / 'examples.py')
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.EXAMPLES


@pytest.fixture(scope='module')
def shell(shared_broker, tmp_path_factory):
    """A function that runs a line in a shell. The addresses in the examples lead to the broker of the test."""
    return shell_on(shared_broker, tmp_path_factory.mktemp('examples'))


@pytest.fixture
def guarded_shell(tmp_path_factory):
    """A function that runs a line in a shell, as `shell` does, with a broker that has access control."""
    with BrokerProcess(tmp_path_factory.mktemp('broker') / 'data', PROMPT | {
        'authorizer.class.name': 'StandardAuthorizer', 'super.users': 'User:ANONYMOUS'}) as broker:
        yield shell_on(broker, tmp_path_factory.mktemp('examples'))


def shell_on(broker, directory):
    directory.mkdir(exist_ok=True)
    install_programs(directory / 'bin')
    environment = os.environ | {'PATH': f'{directory / "bin"}:{os.environ["PATH"]}'}

    def run(line):
        if line.startswith('kbroker-ingest'):
            environment.update(quick_start())
        line = line.replace('localhost:9092', broker.address).replace('/var/lib/kbroker', str(broker.directory))
        return subprocess.run(['sh', '-e', '-c', line], capture_output=True, text=True, timeout=180, check=False,
                              cwd=directory, env=environment)
    return run


def can_run(line):
    """An ingest into files runs in Spark, which needs Java."""
    return not line.startswith('kbroker-ingest') or '--to-table' in line or shutil.which('java') is not None


def test_the_examples_of_the_man_pages_do_what_they_say(guarded_shell):
    """The examples run in the order of the page, because some show what preceding examples created."""
    for rows in examples_of_the_man_pages().values():
        for text, lines in rows:
            if lines.startswith('kbroker serve'):
                serve.make_context('serve', shlex.split(lines)[2:])
            elif lines.startswith('kbroker-acls --data-dir'):       # needs a stopped broker
                main_of('acls').make_context('acls', shlex.split(lines.replace('/var/lib/kbroker', '/tmp'))[1:])
            elif lines.startswith(('kbroker-verify', 'kbroker-proxy')):     # takes minutes, or serves until a signal
                program, *arguments = shlex.split(lines.replace('\\\n', ''))
                name = program.removeprefix('kbroker-')
                main_of(name).make_context(name, [each for each in arguments if not each.endswith('.properties')
                                                  and each != '--command-config'])
            else:
                if not can_run(lines):
                    continue
                done = guarded_shell(lines)
                assert done.returncode == 0, (text, lines, done.stdout, done.stderr)


def test_the_session_of_the_page_of_commands_prints_what_the_page_says(shell):
    """The test compares the output of a command if the page shows some of it."""
    commands = sessions('docs/commands.md')
    assert {command for line, _ in commands for command in re.findall(r'kbroker-[a-z-]+', line)} == SCRIPTS.keys() - {
        'kbroker'}
    for line, expected in filter(lambda row: can_run(row[0]), commands):
        done = shell(line)
        assert done.returncode == 0, f'$ {line}\n{done.stdout}{done.stderr}'
        assert expected in ('', done.stdout) or expected.replace('\\\n', '') == done.stdout, line


def test_the_first_steps_in_the_help_of_kbroker_show_a_transaction(shell):
    _, steps = kbroker_main.epilog.split('\b\n')
    done = shell(steps)
    assert (done.returncode, done.stderr) == (0, '')
    assert '1 committed' in done.stdout


MAINTAINERS = 'docs/releasing.md'
"""The page whose commands change a checkout. tests/packaging tests them."""
NOT_RUN = ('sudo ', 'pip install ', 'python3 -m venv ', 'uv tool ', 'pipx ', 'make ', 'kbroker serve ',
           'kbroker-check --accept ', 'kbroker-proxy ', 'kbroker-verify ', 'podman ', 'podman-compose ',
           'spark-submit ')
"""The beginnings of lines that `check_without_running` checks instead of running: they change the machine, do not end,
take minutes, or need a stopped broker or a cluster. `make containers` types those of podman.
"""
STORES = ('s3://',)
"""Parts of lines that need an object store. `check_without_running` checks these lines, too."""
TABLES = 'docs/lake.md'
"""The page whose blocks of properties are files for the commands on it. The first line of a block is the file's name.
"""


def test_the_commands_of_the_documents_run(broker, tmp_path):
    """Before the commands, the test runs the program of README.md, creates two topics, and initializes the
    transactional id of a Spark query. It also writes the files that the page about tables shows.
    """
    program, = blocks('README.md', 'python')
    program = program.replace('127.0.0.1:9092', broker.address)
    subprocess.run([sys.executable, '-c', program], check=True, capture_output=True, timeout=180)
    shell = shell_on(broker, tmp_path / 'examples')
    shell('kbroker-topics --bootstrap-server localhost:9092 --create --topic events')
    shell(f'kbroker-topics --bootstrap-server localhost:9092 --create --topic {LEDGER_TOPIC} '
          '--config cleanup.policy=compact')
    Producer({'bootstrap.servers': broker.address, 'transactional.id': 'word-count~d'}).init_transactions()
    for text in blocks(TABLES, 'properties'):
        name = re.match(r'# (\S+[.]properties)\n', text)[1]
        (tmp_path / 'examples' / name).write_text(text.replace('/data/', f'{tmp_path / "examples"}/'))
    lines = [line for page in PAGES if page != MAINTAINERS for block in blocks(page, 'sh')
             for line in block.splitlines()]
    assert len(lines) > 20
    for line in lines:
        if line.startswith(NOT_RUN) or any(store in line for store in STORES):
            check_without_running(line)
        elif can_run(line):
            done = shell(line.replace('/data/', ''))
            assert done.returncode == 0, (line, done.stdout, done.stderr)


def check_without_running(line):
    words = shlex.split(line)
    if words[0].startswith('podman'):
        image = f'kbroker:{re.escape(__version__)}| kbroker$'
        assert re.search(f'{image}|secret create|compose[.]yaml|kbroker status', line), line
    elif 'make' in words:
        target = words[words.index('make') + 1]
        assert re.search(rf'^{target}:', text_of('Makefile'), re.MULTILINE), line
    elif 'serve' in words:
        settings = str(ROOT / 'packaging' / 'server.properties')
        serve.make_context('serve', [settings if word == 'server.properties' else word for word in words[2:]
                                     if word != '&'])
    elif words[0] == 'kbroker-verify':
        main_of('verify').make_context('verify', words[1:])
    elif '--to-table' in words:
        options = words[words.index('--topics'):]
        main_of('ingest').make_context('ingest', [__file__ if word.endswith('.properties') else word
                                                  for word in options])
    elif 'install' in words:
        named = re.search(r'\[([\w,]+)\]', line)
        extras = tomllib.loads(text_of('pyproject.toml'))['project']['optional-dependencies']
        assert words[words.index('install') + 1] == '.' or set(named[1].split(',')) <= extras.keys(), line


def test_completion_without_an_installation_is_loaded_by_the_shell(shell):
    line, = blocks('docs/commands.md', 'bash')
    done = shell(f"bash -c '{line.strip()}; complete -p kbroker-topics'")
    assert 'kbroker-topics' in done.stdout, done.stderr


class Beginner:
    """A reader who types the commands of a page in two terminals: the broker in the first, all others in the second.

    The broker has a free port instead of the one on the page.
    """

    def __init__(self, directory):
        self.directory = directory
        install_programs(directory / 'bin')
        self.environment = os.environ | {'PATH': f'{directory / "bin"}:{os.environ["PATH"]}', 'LC_ALL': 'C.UTF-8',
                                          'COLUMNS': '100'}
        self.address = 'localhost:9092'
        self.background = []

    def start(self, line):
        """Type a command that does not end, and return its process."""
        process = subprocess.Popen(['sh', '-c', line], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   cwd=self.directory, env=self.environment, start_new_session=True)
        self.background.append(process)
        return process

    def type(self, line):
        """Type a command, and return what the reader sees of it."""
        line = line.replace('localhost:9092', self.address)
        if line.startswith('kbroker serve'):
            printed = ''
            for printed_line in self.start(f'{line} --listen 127.0.0.1:0').stderr:
                printed += printed_line
                if found := re.search(r'ready on ([^\s,]+)', printed_line):
                    self.address = found[1]
                    return printed.replace(str(self.directory), '/home/you')
            raise AssertionError(f'the broker does not start: {printed}')
        if line.endswith(' &'):
            self.start(line.removesuffix(' &'))
            return ''
        if line == 'kill %1':
            self.end(self.background.pop())
            return ''
        if line.startswith('xdg-open '):
            return ''
        done = subprocess.run(['sh', '-c', line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, timeout=180, check=False, cwd=self.directory,
                              env=self.environment)
        return done.stdout.replace(self.address, 'localhost:9092')

    def close(self):
        while self.background:
            self.end(self.background.pop())

    @staticmethod
    def end(process):
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=180)


@pytest.fixture
def beginner(tmp_path):
    reader = Beginner(tmp_path)
    try:
        yield reader
    finally:
        reader.close()


def test_the_page_for_beginners_leads_to_a_picture_of_their_transactions(beginner):
    """The reader repeats `why-stuck` until the producer in the background has written its record. The test does not
    compare times, ids, ports and offsets.
    """
    page = 'docs/getting-started.md'
    program, = blocks(page, 'python')
    *commands, (last, shown_last) = sessions(page)
    for line, shown in commands:
        seen = beginner.type(line)
        while 'is held at offset' in shown and 'is not held' in seen:
            seen = beginner.type(line)
        assert without_numbers(seen) == without_numbers(shown), (line, seen)
    before = (beginner.directory / 'payments.html').read_text()
    subprocess.run([sys.executable, '-c', program.replace('localhost:9092', beginner.address)], check=True, timeout=180)
    assert beginner.type(last) == shown_last
    picture = (beginner.directory / 'payments.html').read_text()
    assert [name in before for name in ('billing-1', 'billing-2', 'shop-1')] == [True, True, False]
    assert 'shop-1' in picture


def test_why_stuck_says_what_the_page_about_it_and_the_readme_show(shared_broker, shell):
    """The test does not compare times, ids and offsets."""
    shown, = (block for block in blocks('docs/stuck.md', 'text') if 'is held at offset' in block)
    (in_readme, shown_in_readme), = sessions('README.md')
    producer = Producer({'bootstrap.servers': shared_broker.address, 'transactional.id': 'billing-1'})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce('orders-of-the-page', 'text', partition=0)
    producer.flush()
    said = shell('kbroker-transactions --bootstrap-server localhost:9092 why-stuck orders-of-the-page')
    said_in_readme = shell(in_readme.replace('orders', 'orders-of-the-page'))
    producer.abort_transaction()
    assert said.returncode == 1, said.stderr
    for done, expected in ((said, shown), (said_in_readme, shown_in_readme)):
        assert without_numbers(done.stdout.replace('orders-of-the-page', 'orders').replace(
            shared_broker.address, 'localhost:9092')) == without_numbers(expected)


def without_numbers(text):
    """Replace each number, time and duration. Two numbers in a row count as one: a duration has one or two of them."""
    text = re.sub(r'(?<=of cluster )\S+', 'N', ' '.join(text.split()))
    text = re.sub(r'\d[\d:.TZ-]*( ms| s| min)?', 'N', text)
    return re.sub(r'N( N)+', 'N', text)
