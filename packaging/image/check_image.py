"""Runs the image as an operator would, and ends with one line if it does not do what docs/containers.md says.

    check_image.py DIST

DIST is the directory of the wheel from which build_image.py built the image.
"""
import pathlib
import sys

from build_image import find_wheel, image_of
from podman import CONFINED, container, logs_when, one_run, podman, secret, settings, state_of, volume

ROOT = pathlib.Path(__file__).parent.parent.parent
DATA = '/var/lib/kbroker'
SMOKE = "import runpy; runpy.run_path('/smoke.py')['use']('localhost:9092')"
RIGHTS = "print([line for line in open('/proc/1/status') if line.startswith(('Uid', 'Gid', 'CapEff', 'NoNewPrivs'))])"
EXPECTED_RIGHTS = ['Uid:\t10001\t10001\t10001\t10001\n', 'Gid:\t10001\t10001\t10001\t10001\n',
                   'CapEff:\t0000000000000000\n', 'NoNewPrivs:\t1\n']
METRICS = 'http://127.0.0.1:9464'
PAGES = f"""
import urllib.request
for path in '/readyz', '/metrics', '/', '/page.css':
    print(urllib.request.urlopen('{METRICS}' + path).read().decode())
"""
CONTROL = ('--env', 'KBROKER_CONTROL=0.0.0.0:9093')
TOKEN = 'a-token-for-tests-only'
POINTS = f"""
import json, urllib.error, urllib.request
for headers in {{'Authorization': 'Bearer {TOKEN}'}}, {{}}:
    try:
        answer = urllib.request.urlopen(urllib.request.Request('http://127.0.0.1:9093/points', headers=headers))
        print('transaction.prepared' in answer.read().decode())
    except urllib.error.HTTPError as error:
        print(error.status)
"""
IMPORTS = """
import importlib, pathlib, pkgutil, sysconfig, kbroker
names = [module.name for module in pkgutil.walk_packages(kbroker.__path__, 'kbroker.')
         if module.name != 'kbroker.__main__' and not module.name.endswith('.plugin')]    # those need pytest
standard = pathlib.Path(sysconfig.get_path('platstdlib'))
names += [path.name.partition('.')[0] for path in standard.glob('lib-dynload/*.so')]
print([importlib.import_module(name) for name in names][-1])
"""
COMMANDS = """
import pathlib, subprocess, sys
programs = sorted(pathlib.Path('/usr/local/bin').glob('kbroker*'))
sys.exit(len(programs) < 18 or any(subprocess.run([program, '--help'], stdout=subprocess.DEVNULL).returncode
                                   for program in programs))
"""


def main():
    image = image_of(find_wheel(pathlib.Path(sys.argv[1])).version)
    with settings():
        check_service(image)
        check_mistakes(image)
        check_control(image)
        # All modules find their libraries. The image with the commands has the same root, and what OAuth needs.
        for program in (IMPORTS, COMMANDS):
            one_run(f'{image}-tools', '--entrypoint', 'python3', command=['-c', program])
    print(f'{image}: served transactions on a read-only root without rights, is healthy, and stops cleanly')


def check_service(image):
    """Serve transactions with every restriction that a container may have, then start again on the same volume."""
    with volume() as data:
        for is_first in (True, False):
            with container(image, *CONFINED, '--volume', f'{data}:{DATA}', '--env',
                           f'KBROKER_SET=metrics.listen={METRICS}') as broker:
                log = logs_when(broker, 'ready on 0.0.0.0:9092')
                expect('is on no volume' not in log, f'no warning about the volume:\n{log}')
                podman('healthcheck', 'run', broker)
                pages = podman('exec', broker, 'python3', '-c', PAGES)
                expect(pages.startswith('ok') and 'kbroker_build_info' in pages and '<main' in pages,
                       f'that the broker is ready, its metrics and its page, found {pages}')
                if is_first:
                    one_run(image, '--network', f'container:{broker}', '--entrypoint', 'python3', '--volume',
                            f'{ROOT / "packaging" / "smoke.py"}:/smoke.py:ro', command=['-c', SMOKE])
                    found = podman('exec', broker, 'python3', '-c', RIGHTS).strip()
                    expect(found == str(EXPECTED_RIGHTS), f'the rights {EXPECTED_RIGHTS}, found {found}')
                else:
                    found = podman('exec', broker, 'python3', '-c', f'import os; print(os.listdir("{DATA}"))')
                    expect('smoke-0' in found, f'the topic of the first start, found {found}')
                podman('stop', broker)
                status = state_of(broker)['ExitCode']
                expect(status == 0, f'exit status 0 after podman stop, found {status}:\n{podman("logs", broker)}')


def check_mistakes(image):
    """Forget the volume, on a root that is read-only or not, and mount one that another user owns."""
    with container(image) as broker:
        expect(f'{DATA} is on no volume' in logs_when(broker, 'ready on'), 'a warning about the volume')
    expect_one_line(one_run(image, '--read-only', status=1))
    with volume() as data:
        one_run(image, '--user', '0', '--entrypoint', 'python3', '--volume', f'{data}:{DATA}',
                command=['-c', f'import os; os.chown("{DATA}", 0, 0)'])
        expect_one_line(one_run(image, '--volume', f'{data}:{DATA}', status=1))


def check_control(image):
    """Serve the control port of a test, which in a container needs a token, because its address is not loopback."""
    expect_one_line(one_run(image, *CONTROL, status=1), '--control')
    with secret(TOKEN) as name, container(
            image, *CONTROL, '--secret', f'{name},uid=10001,mode=0400',
            '--env', f'KBROKER_CONTROL_TOKEN_FILE=/run/secrets/{name}') as broker:
        logs_when(broker, 'ready on 0.0.0.0:9092')
        podman('healthcheck', 'run', broker)
        found = podman('exec', broker, 'python3', '-c', POINTS)
        expect(found == 'True\n401\n', f'the points with the token, and status 401 without, found {found}')


def expect_one_line(printed, about=DATA):
    """Expect that the broker says in its last line, without a traceback, what is wrong with the directory or option."""
    expect(printed.splitlines()[-1].startswith(f'kbroker: {about}') and 'Traceback' not in printed,
           f'one line about {about}, found:\n{printed}')
    print(printed.splitlines()[-1])


def expect(is_true, what):
    if not is_true:
        sys.exit(f'expected {what}')


if __name__ == '__main__':
    main()
