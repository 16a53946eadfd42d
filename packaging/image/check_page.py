"""Types the examples of docs/containers.md on podman: Testcontainers in four languages, Compose and Kubernetes.

    check_page.py DIST

DIST is the directory of the wheel from which build_image.py built the image. The libraries are fetched into
build/containers. Port 9092 of the machine has to be free.
"""
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time

from build_image import PACKAGING, find_wheel, image_of
from podman import LIMIT_S, logs_when, one_run, podman, settings

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
DRIVERS = HERE / 'page'
BUILD = ROOT / 'build' / 'containers'
PAGE = (ROOT / 'docs' / 'containers.md').read_text()
SMOKE = "import runpy; runpy.run_path('/smoke.py')['use']('{}')"

PACKAGES = ('testcontainers>=4.15', 'confluent-kafka>=2.5', 'podman-compose>=1.5')
PYTHON = BUILD / 'venv' / 'bin' / 'python'

LANGUAGES = {
    'python': ({'kbroker_container.py': ('python', 0), 'fixed_port_container.py': ('python', 1)},
               ('transaction.py', 'fixed_port.py'),
               (), (f'{PYTHON} transaction.py', f'{PYTHON} fixed_port.py')),
    'java': ({'src/main/java/KbrokerContainer.java': ('java', 0)},
             ('pom.xml', 'Transaction.java:src/main/java/Transaction.java'), (),
             ('mvn -q -B compile org.codehaus.mojo:exec-maven-plugin:3.5.0:java -Dexec.mainClass=Transaction',)),
    'node': ({'kbroker.mjs': ('js', 0)}, ('package.json', 'transaction.mjs'), ('npm install --silent',),
             ('node transaction.mjs',)),
    'go': ({'kbroker_test.go': ('go', 0)}, ('go.mod', 'transaction_test.go'), ('go mod tidy',),
           ('go test -count=1 -v .',)),
}
"""Maps each language to the files from the page, the other files, the commands that prepare it, and those to type."""
PROGRAMS = ('java', 'mvn', 'node', 'npm', 'go', 'catatonit')


def main():
    image = image_of(find_wheel(pathlib.Path(sys.argv[1])).version)
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        sys.exit(f'missing programs to type the examples: {", ".join(missing)}')
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(('127.0.0.1', 9092))
        except OSError as error:
            sys.exit(f'port 9092: {error.strerror}; expected a free port for the examples')
    run(f'{PACKAGING}/uv venv --quiet --clear {BUILD}/venv', ROOT)
    run(f'{PACKAGING}/uv pip install --quiet --python {PYTHON} {" ".join(PACKAGES)}', ROOT)
    with settings():
        check_commands(image)
        check_compose(image)
        check_kubernetes()
        with docker_socket():
            for language, rows in LANGUAGES.items():
                check_language(language, *rows)


def check_language(language, from_page, drivers, preparing, typing):
    directory = BUILD / language
    for name, (fence, number) in from_page.items():
        write(directory / name, blocks(fence)[number])
    for driver in drivers:
        name, _, target = driver.partition(':')
        write(directory / (target or name), (DRIVERS / name).read_text())
    for command in preparing:
        run(command, directory)
    for command in typing:
        printed = run(command, directory)
        if 'read kept' not in printed:
            sys.exit(f'{command}: expected "read kept", found:\n{printed}')
    print(f'{language}: typed')


def blocks(fence):
    return re.findall(rf'^```{fence}\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run(command, directory):
    done = subprocess.run(command.split(), cwd=directory, check=False, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=20 * LIMIT_S)
    if done.returncode:
        sys.exit(f'{command}: found exit status {done.returncode}, expected 0:\n{done.stdout}{done.stderr}')
    return done.stdout


@contextlib.contextmanager
def docker_socket():
    """Let podman serve Docker's interface, and tell Testcontainers in the environment of this process."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / 'podman.sock'
    path.unlink(missing_ok=True)
    service = subprocess.Popen(['podman', 'system', 'service', '--time', '0', f'unix://{path}'],
                               stderr=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + LIMIT_S
        while not path.exists():
            if time.monotonic() > end_s or service.poll() is not None:
                sys.exit(f'podman system service: found no socket {path} after {LIMIT_S} s')
            time.sleep(0.1)
        # Ryuk, which removes containers of dead tests, is an image of a registry. A machine that looks like a container
        # is reached as localhost nevertheless.
        os.environ |= {'DOCKER_HOST': f'unix://{path}', 'TESTCONTAINERS_RYUK_DISABLED': 'true',
                       'TESTCONTAINERS_HOST_OVERRIDE': 'localhost', 'TESTCONTAINERS_CONNECTION_MODE': 'docker_host'}
        yield
    finally:
        service.terminate()
        service.wait()


def check_commands(image):
    """Type the commands of podman in their order."""
    os.environ['CONTROL_TOKEN'] = 'a-token-for-the-examples'
    commands = [line for block in blocks('sh') for line in block.splitlines() if line.startswith('podman ')]
    try:
        for command in commands:
            if command.startswith('podman exec'):
                logs_when('kbroker', 'ready on')
            podman(*shlex.split(command)[1:])
    finally:
        for name in podman('ps', '--all', '--quiet', '--filter', f'ancestor=localhost/{image}').split():
            podman('rm', '--force', name)
        podman('volume', 'rm', '--force', 'kbroker')
        podman('secret', 'rm', 'kbroker-control')
    print(f'podman: {len(commands)} commands typed')


def check_compose(image):
    """Use both addresses of the file: from the machine's network, and from another container of the file's network."""
    file = ROOT / 'packaging' / 'compose.yaml'
    compose = f'{BUILD}/venv/bin/podman-compose --file {file} --project-name kbroker-page'
    try:
        run(f'{compose} up --detach', ROOT)
        logs_when('kbroker-page_kbroker_1', 'ready on')
        for network, address in (('host', 'localhost:9092'), ('kbroker-page_default', 'kbroker:19092')):
            use(image, network, address)
    finally:
        run(f'{compose} down --volumes', ROOT)
    print('compose: typed')


def check_kubernetes():
    file = BUILD / 'kubernetes.yaml'
    write(file, blocks('yaml')[0])
    try:
        podman('play', 'kube', file)
        logs_when('kbroker-pod-0-kbroker', 'ready on')
        podman('exec', 'kbroker-pod-0-kbroker', 'kbroker', 'status')
    finally:
        podman('play', 'kube', '--down', file)
        podman('volume', 'rm', 'kbroker')
    print('kubernetes: typed')


def use(image, network, address):
    """Run the transactions of smoke.py in a container of a network."""
    one_run(image, '--network', network, '--entrypoint', 'python3', '--volume',
            f'{ROOT / "packaging" / "smoke.py"}:/smoke.py:ro', command=['-c', SMOKE.format(address)])


if __name__ == '__main__':
    main()
