"""The documents agree with the code."""
import os
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from mkdocs.exceptions import Abort
from support.kafka.skipped_apis import skipped_keys, skipped_versions
from support.runner.command_runner import SCRIPTS
from support.runner.pages import PAGES, ROOT, blocks, load, rows_of_table, text_of
from support.runner.suites import Suite

import kbroker.client
from kbroker.apis.serving.served import served_apis
from kbroker.client.config import ClientConfig
from kbroker.metadata.features import DEFAULT_FEATURES, SUPPORTED_FEATURES
from kbroker.protocol.api_keys import ApiKey
from kbroker.settings.config import Config
from kbroker.settings.properties import read_properties
from kbroker.settings.table import SETTINGS
from kbroker_tools.spark.options import ROWS
from kbroker_tools.spark.sink import options as sink_options
from kbroker_tools.stuck.causes import CAUSES

TESTING = 'docs/testing.md'
BYTES_OF_TYPES = {'int8': 1, 'int16': 2, 'int32': 4, 'uint32': 4, 'int64': 8}


MAKE = load(ROOT / 'man' / 'make.py')
BUILD = load(ROOT / 'docs' / 'build.py')
RESULTS = load(ROOT / 'bench' / 'results.py')


# ---- the pages

@pytest.mark.parametrize(('page', 'lines'), [('README.md', 120), ('ARCHITECTURE.md', 300)])
def test_a_page_stays_short(page, lines):
    assert len(text_of(page).splitlines()) <= lines


def test_the_site_is_built_and_no_link_leads_nowhere(tmp_path, monkeypatch):
    BUILD.build_site(tmp_path / 'site')
    assert 'Protocol coverage' in (tmp_path / 'site' / 'index.html').read_text()
    copy_pages = BUILD.copy_pages

    def with_a_page_more(to):
        copy_pages(to)
        with open(to / 'README.md', 'a') as readme:
            readme.write('[nowhere](docs/operating.md#nowhere)')

    monkeypatch.setattr(BUILD, 'copy_pages', with_a_page_more)
    with pytest.raises(Abort):
        BUILD.build_site(tmp_path / 'other')


def test_no_example_is_in_a_language_that_no_test_checks():
    assert {language for page in PAGES for language in re.findall(r'^```(\w*)\n.*?^```', text_of(page),
                                                                  re.MULTILINE | re.DOTALL)} == {
        'sh', 'console', 'python', 'py', 'text', 'properties', 'bash', 'json', 'yaml', 'java', 'js', 'go', 'toml'}


def test_the_transaction_of_the_readme_prints_what_the_readme_says(broker):
    program, = blocks('README.md', 'python')
    expected, = blocks('README.md', 'text')
    program = program.replace('127.0.0.1:9092', broker.address)
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=180, check=False)
    assert (done.stdout, done.returncode) == (expected, 0), done.stderr


def test_the_first_program_of_the_page_about_testing_prints_what_the_page_says(tmp_path):
    """The program runs in an empty directory, with nothing else started."""
    program, expected = blocks(TESTING, 'python')[0], blocks(TESTING, 'text')[0]
    done = subprocess.run([sys.executable, '-c', program], cwd=tmp_path, env=os.environ | {'PYTHONPATH': str(ROOT)},
                          capture_output=True, text=True, timeout=180, check=False)
    assert (done.stdout, done.returncode) == (expected, 0), done.stderr


def test_the_test_files_of_the_page_about_testing_pass(tmp_path):
    """The page has examples of test files. This test saves the examples and runs them, as a reader would."""
    _, fixtures, class_of_unittest, *_ = blocks(TESTING, 'python')
    run = Suite(tmp_path, f'{fixtures}\n\n{class_of_unittest}').run()
    assert set(run.outcomes.values()) == {'PASSED'} and len(run.outcomes) == 4, run.output


def test_the_settings_of_the_pages_exist_and_their_values_are_valid():
    """The page about tables has settings of catalogs and registries. `test_examples.py` passes them to commands."""
    examples = [text for page in PAGES if page != 'docs/lake.md' for text in blocks(page, 'properties')]
    assert examples
    for text in examples:
        given, warnings = read_properties(text)
        assert warnings == []
        if 'security.protocol' in given:
            config = ClientConfig.from_settings({'bootstrap.servers': 'localhost:9092'} | given)
            assert not config.properties, 'a setting that the client does not know'
        else:
            assert Config(given).warnings == []
    for names, default, value in rows_of_table('docs/testing.md', 'setting'):
        for name in re.findall(r'`([^`]+)`', names):
            assert SETTINGS[name].text(SETTINGS[name].default) == default
            SETTINGS[name].parse(re.match(r'`([^`]+)`', value)[1])


def test_the_page_of_the_client_has_every_public_name():
    named = [name for names, _ in rows_of_table('docs/client.md', 'names') for name in re.findall(r'`(\w+)`', names)]
    assert sorted(named) == kbroker.client.__all__


def test_the_protocol_page_has_the_apis_and_versions_that_are_served():
    expected = [[api.key.name.title().replace('_', ''), str(int(api.key)), in_words(api.min_version, api.max_version)]
                for api in served_apis()]
    assert [row[:3] for row in rows_of_table('docs/protocol.md', 'API')] == expected


def test_the_page_of_security_has_the_rights_of_each_api():
    named = {name for request, *_ in rows_of_table('docs/security.md', 'request')
             for name in re.findall(r'[A-Z]\w+', request)}
    assert {api.key.name.title().replace('_', '') for api in served_apis()} <= named
    assert named <= {key.name.title().replace('_', '') for key in ApiKey}


def test_the_protocol_page_has_the_features_of_a_new_directory():
    levels = {'kraft.version': 1, **DEFAULT_FEATURES}
    assert rows_of_table('docs/protocol.md', 'feature') == [
        [f'`{name}`', str(levels[name]), in_words(*bounds)] for name, bounds in SUPPORTED_FEATURES.items()]


def in_words(first, last):
    return str(first) if first == last else f'{first}-{last}'


def test_the_byte_maps_have_no_gap():
    """Each field begins where the previous field ends. The sizes that the page states agree with its maps."""
    text = text_of('docs/formats.md')
    ends = []
    for block in blocks('docs/formats.md', 'text'):
        fields = re.findall(r'^\[ ?(\d+)\]  (\w+) +(\w*)', block, re.MULTILINE)
        end = 0
        for position, name, kind in fields:
            assert int(position) == end, name
            end += BYTES_OF_TYPES.get(kind, 0)
        ends += [end] if fields else []
    assert ends == [61, 4, 6, 8, 12, 34, 10, 46]
    for stated in (8, 12, 34, 46):
        assert re.search(rf'\b{stated} bytes', text)


def test_the_page_of_commands_has_every_command():
    assert [row[0] for row in rows_of_table('docs/commands.md', 'command')] == [
        f'`{name}`' for name in sorted(SCRIPTS.keys() - {'kbroker'}, key=text_of('docs/commands.md').index)]
    assert set(re.findall(r'`(kbroker-[a-z-]+)`', text_of('README.md'))) == SCRIPTS.keys() - {'kbroker'}


def test_the_page_of_spark_has_every_option_with_its_default():
    named = {}
    for names, default, *_ in rows_of_table('docs/spark.md', 'option'):
        defaults = default.split(', ')
        names = re.findall(r'`([\w.*]+)`', names)
        named |= dict(zip(names, defaults * (len(names) // len(defaults)), strict=True))
    assert (named.pop('kafka.*'), named.pop('schema.registry.*')) == ('', '')
    assert named == {row.name: option_in_words(row.default) for row in ROWS}


def test_the_page_of_spark_has_every_option_of_the_sink_with_its_default():
    named = {name.strip('`'): default.strip('`') for name, default, _ in rows_of_table(
        'docs/spark.md', 'option of the sink')}
    assert (named.pop('kafka.*'), named.pop('topic.config.*'), named.pop('kafka.bootstrap.servers')) == ('', '', '')
    assert (named.pop('kafka.batch.size'), named.pop('kafka.buffer.memory'), named.pop('kafka.linger.ms')) == (
        f'{sink_options.BATCH_BYTES >> 10} KiB', f'{sink_options.BUFFER_BYTES >> 20} MiB',
        str(sink_options.LINGER_MS))
    assert named == {row.name: option_in_words(row.default) for row in sink_options.ROWS}


def option_in_words(default):
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int) and default % (1 << 20) == 0:
        return f'{default >> 20} MiB'
    if default in (60_000, 15 * 60_000):
        return f'{default // 60_000}m'
    return '' if default is None else str(default)


def test_the_page_of_stuck_transactions_has_every_cause_of_a_stuck_partition():
    named = [name for row in rows_of_table('docs/stuck.md', 'causes') for name in re.findall('`(.+?)`', row[0])]
    assert sorted(named) == sorted(cause.name for cause in CAUSES)


# ---- the results

def test_the_results_are_those_of_the_data():
    """After a change of the data, `python bench/results.py` writes the results again."""
    data = RESULTS.from_text(RESULTS.DATA.read_text())
    text = RESULTS.PAGE.read_text()
    assert set(re.findall(r'<!-- table (\w+) -->', text)) == RESULTS.CONTENTS.keys()
    assert RESULTS.page(data, text) == text
    assert RESULTS.as_text(data) == RESULTS.DATA.read_text()
    pictures = RESULTS.charts(data)
    assert {path.name for path in RESULTS.HERE.glob('*.svg')} == pictures.keys()
    for name, picture in pictures.items():
        assert (RESULTS.HERE / name).read_text() == picture


def test_a_report_replaces_rows_of_the_same_name_and_adds_others():
    data = {}
    report = '2 processors; once\n\n| cell | peer | per s | of floor |\n|---|---|--:|--:|\n'
    RESULTS.take(data, report + '| a | kafka | 1,000 [900-1,100] | 15% |\n| b | kafka |  |  |\n')
    RESULTS.take(data, report.replace('once', 'again') + '| b | kafka | 2.5 | -1.5% |\n| c | kafka | many | |\n')
    assert data == {'peers': {'machine': '2 processors; again.', 'keys': 2, 'rows': [
        {'cell': 'a', 'peer': 'kafka', 'per s': [1000, 900, 1100], 'of floor': 0.15},
        {'cell': 'b', 'peer': 'kafka', 'per s': 2.5, 'of floor': -0.015},
        {'cell': 'c', 'peer': 'kafka', 'per s': 'many'}]}}
    assert RESULTS.from_text(RESULTS.as_text(data)) == data


# ---- the man pages


def test_the_man_pages_are_those_of_the_commands_and_the_settings():
    assert {path.name for path in (ROOT / 'man').glob('*.[0-9]')} == set(MAKE.PAGES)
    assert set(MAKE.EXAMPLES) == set(MAKE.scripts()), 'each page shows examples of its command'


@pytest.mark.parametrize('page', sorted(MAKE.PAGES))
def test_the_man_pages_are_those_of_the_code(page):
    assert (ROOT / 'man' / page).read_text() == MAKE.PAGES[page](), 'run `make man`'


@pytest.mark.parametrize('name', sorted(MAKE.scripts()))
def test_a_page_has_every_option_of_its_command(name):
    """The test reads the options in the output of `--help`, which does not depend on the generator of the pages."""
    command = MAKE.command_of(name)
    helps = [[]]
    if isinstance(command, click.Group):
        helps += [[subname] for subname in MAKE.subcommands(command)]
    page, = (ROOT / 'man').glob(f'{name}.[18]')
    text = page.read_text().replace('\\-', '-')
    for arguments in helps:
        said = CliRunner().invoke(command, [*arguments, '--help'], prog_name=name)
        assert said.exit_code == 0
        for option in re.findall(r'^ +(?:-\w, )?(--[\w-]+)', said.output, re.MULTILINE):
            assert option in ('--help', '--version') or re.search(rf'^\.B .*{option}\b', text, re.MULTILINE), option


@pytest.mark.mandoc
def test_mandoc_has_no_remark_on_a_page():
    pages = sorted(map(str, (ROOT / 'man').glob('*.[0-9]')))
    assert subprocess.run(['mandoc', '-T', 'lint', *pages], capture_output=True, text=True, check=False).stdout == ''


# ---- the tree

def test_the_architecture_names_modules_that_are_there():
    named = set(re.findall(r'`([a-z_]+/[a-z_/]+)[\w.]*`', (ROOT / 'ARCHITECTURE.md').read_text()))
    assert len(named) > 40
    assert [name for name in sorted(named) if not is_in_the_tree(name)] == []


def test_the_architecture_names_every_room_in_its_layer():
    layers = load(ROOT / 'tests' / 'test_layers.py')
    tables = re.findall(r'^\| +\| room \|.*\n\|[-:|]+\n((?:\|.*\n)*)', text_of('ARCHITECTURE.md'), re.MULTILINE)
    broker, tools = map(rooms_by_layer, tables)
    assert broker == {room: layer for room, layer in layers.LAYER.items() if list((ROOT / 'kbroker').glob(f'{room}*'))}
    assert tools == layers.TOOL_LAYER
    picture = text_of('docs/rooms.svg')
    for directory in (ROOT / 'kbroker').glob('*/'):
        assert re.search(rf'>[^<]*\b{directory.name}\b[^<]*<', picture) or directory.name == '__pycache__', directory


def rooms_by_layer(table):
    return {room.rstrip('/'): int(number)
            for number, cell in re.findall(r'^\| (\d+) \| (.*?) \|', table, re.MULTILINE)
            for room in re.findall('`(.+?)`', cell)}


def is_in_the_tree(name):
    places = [place / name.rstrip('/') for place in (ROOT, ROOT / 'kbroker', ROOT / 'kbroker_tools')]
    return any(place.is_dir() or list(place.parent.glob(f'{place.name}.*')) for place in places)


def test_an_api_is_served_or_skipped_with_a_reason():
    skipped, served = skipped_keys(), {int(api.key) for api in served_apis()}
    assert not skipped & served
    assert {int(key) for key in ApiKey} <= skipped | served


def test_the_versions_that_are_left_out_are_those_of_served_apis():
    names = {api.request_class.__name__.removesuffix('Request') for api in served_apis()}
    assert skipped_versions().keys() <= names | SUPPORTED_FEATURES.keys()
    assert skipped_versions()['InitProducerId'] == {6}
