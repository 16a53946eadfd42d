"""The container image, the compose file and the page about containers state the same facts."""
import pathlib
import re
import runpy

import pytest
import yaml
from support.runner.pages import ROOT, blocks, rows_of_table, text_of

from kbroker import __version__
from kbroker.daemon.main import serve
from kbroker.settings.config import Config
from kbroker.settings.properties import read_properties

IMAGE = ROOT / 'packaging' / 'image'
CONTAINERFILE = (IMAGE / 'Containerfile').read_text()
FILL_ROOT = runpy.run_path(str(IMAGE / 'fill_root.py'))
COMPOSE = yaml.safe_load((ROOT / 'packaging' / 'compose.yaml').read_text())
KUBERNETES = list(yaml.safe_load_all(blocks('docs/containers.md', 'yaml')[0]))
PAGE = 'docs/containers.md'
DATA = '/var/lib/kbroker'


def instruction(name):
    found, = re.findall(rf'^{name} (.*)', CONTAINERFILE, re.MULTILINE)
    return found


def variables_of_image():
    block, = re.findall(r'^ENV ((?:.*\\\n)*.*)', CONTAINERFILE, re.MULTILINE)
    return dict(pair.split('=', 1) for pair in block.replace('\\\n', '').split())


def settings_of(assignments):
    return Config(dict(assignment.split('=', 1) for assignment in assignments.split()))


def test_the_settings_of_the_image_are_valid_and_serve_its_port_on_every_interface():
    given, warnings = read_properties((IMAGE / 'server.properties').read_text())
    config = Config(given)
    assert warnings == config.warnings == []
    assert [str(listener) for listener in config.bound_listeners] == [f'PLAINTEXT://0.0.0.0:{instruction("EXPOSE")}']
    assert [str(listener) for listener in config.advertised] == [f'PLAINTEXT://localhost:{instruction("EXPOSE")}']


def test_the_user_of_the_image_owns_the_data_directory():
    number = f'{FILL_ROOT["USER"]}:{FILL_ROOT["GROUP"]}'
    assert instruction('USER') == number
    assert f'kbroker:x:{number}:kbroker:{DATA}:' in FILL_ROOT['FILES']['etc/passwd']
    assert variables_of_image()['KBROKER_DATA_DIR'] == DATA


def test_the_variables_of_the_image_and_of_the_page_are_those_of_the_command():
    options = {parameter.envvar: parameter.opts[0] for parameter in serve.params if parameter.envvar}
    in_image = variables_of_image()
    rows = rows_of_table(PAGE, 'variable')
    assert {variable.strip('`'): option.partition(';')[0].strip('`') for variable, option, _ in rows} == options
    assert {variable.strip('`'): value.strip('`') for variable, _, value in rows if value} == {
        name: value for name, value in in_image.items() if name.startswith('KBROKER_')}


def test_the_compose_file_gives_one_address_to_the_machine_and_one_to_containers():
    service = COMPOSE['services']['kbroker']
    config = settings_of(service['environment']['KBROKER_SET'])
    assert [str(listener) for listener in config.advertised] == ['PLAINTEXT://localhost:9092',
                                                                 'CONTAINERS://kbroker:19092']
    assert service['ports'] == [f'127.0.0.1:9092:{instruction("EXPOSE")}']
    assert service['volumes'] == [f'kbroker:{DATA}']


def test_the_pod_of_the_page_runs_as_the_user_of_the_image_on_its_data_directory():
    deployment, = (each for each in KUBERNETES if each['kind'] == 'Deployment')
    pod = deployment['spec']['template']['spec']
    assert pod['securityContext'] == {'runAsNonRoot': True, 'runAsUser': FILL_ROOT['USER'],
                                      'runAsGroup': FILL_ROOT['GROUP'], 'fsGroup': FILL_ROOT['GROUP']}
    container, = pod['containers']
    assert [mount['mountPath'] for mount in container['volumeMounts']] == [DATA]
    assert container['ports'] == [{'containerPort': int(instruction('EXPOSE'))}]
    assert f'CMD {container["readinessProbe"]["exec"]["command"]}'.replace("'", '"') in CONTAINERFILE


@pytest.mark.parametrize('file', [PAGE, 'packaging/compose.yaml'])
def test_every_image_is_of_this_version(file):
    assert {tag.removesuffix('-tools') for tag in re.findall(r'kbroker:(\d[\w.-]*)', text_of(file))
            if not tag.isdecimal()} == {__version__}


def test_the_page_has_the_limits_of_the_build():
    build = runpy.run_path(str(IMAGE / 'build_image.py'))
    assert (f'above {build["MOST_UNPACKED"] // 1_000_000} MB unpacked or {build["MOST_COMPRESSED"] // 1_000_000} MB '
            'compressed') in ' '.join(text_of(PAGE).split())


@pytest.mark.parametrize(('names', 'found'), [
    ([], 'no wheel'),
    (['kbroker-1.0-py3-none-any.whl'], 'kbroker-1.0-py3-none-any.whl'),
    (['kbroker-1.0-cp312-cp312-linux_x86_64.whl'], 'kbroker-1.0-cp312-cp312-linux_x86_64.whl'),
    (['kbroker-1.0-cp311-cp311-musllinux_1_1_x86_64.whl'], 'musllinux'),
    (['kbroker-1.0-cp311-cp311-linux_x86_64.whl', 'kbroker-1.0-cp313-cp313-linux_x86_64.whl'], 'cp313')])
def test_an_image_is_refused_in_one_line_without_the_one_wheel_that_it_needs(tmp_path, names, found):
    for name in names:
        pathlib.Path(tmp_path / name).touch()
    with pytest.raises(SystemExit, match=re.escape(found)):
        runpy.run_path(str(IMAGE / 'build_image.py'))['find_wheel'](tmp_path)


def test_the_image_gets_the_wheel_of_this_machine_that_can_be_published(tmp_path, monkeypatch):
    """`make package` and `make wheels` both write a wheel for this machine."""
    for tags in ('cp311-cp311-linux_x86_64', 'cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64',
                 'cp311-cp311-manylinux_2_28_aarch64',
                 'cp311-cp311-musllinux_1_1_x86_64', 'cp312-cp312-linux_x86_64'):
        (tmp_path / f'kbroker-1.0-{tags}.whl').touch()
    monkeypatch.setattr('platform.machine', lambda: 'x86_64')
    wheel = runpy.run_path(str(IMAGE / 'build_image.py'))['find_wheel'](tmp_path)
    assert (wheel.version, wheel.python, wheel.machine) == ('1.0', '3.11', 'x86_64')
    assert 'manylinux' in wheel.path.name
