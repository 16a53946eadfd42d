"""Containers for the checks of the image, and for the tests of the page about containers."""
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

LIMIT_S = 60
SETTINGS = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "%s"
"""
"""Settings with which podman also runs in a machine that is a container itself, where no limit can be raised.

runc accepts the mixed control groups that crun refuses.
"""
CONFINED = ('--read-only', '--cap-drop', 'all', '--security-opt', 'no-new-privileges')

_numbers = itertools.count()


@contextlib.contextmanager
def settings():
    """Set up podman for this process and its children. End the program with one line if podman is missing."""
    if shutil.which('podman') is None:
        sys.exit('missing the program that runs the image: apt install podman runc')
    with tempfile.NamedTemporaryFile('w', suffix='.conf') as file:
        file.write(SETTINGS % ('runc' if shutil.which('runc') else 'crun'))
        file.flush()
        os.environ['CONTAINERS_CONF'] = file.name
        yield


def podman(*arguments, status=0):
    """Run podman, and return what it printed on both streams. End the program if the exit status is another one."""
    # Without systemd, podman starts no timers for health checks, and says so as an error.
    done = subprocess.run(['podman', '--log-level', 'fatal', *map(str, arguments)], check=False, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, timeout=10 * LIMIT_S)
    if done.returncode != status:
        sys.exit(f'podman {" ".join(map(str, arguments))}: found exit status {done.returncode}, expected {status}:\n'
                 f'{done.stdout}{done.stderr}')
    return done.stdout + done.stderr


@contextlib.contextmanager
def container(image, *options, command=()):
    """Start a container in the background, and yield its name. Remove it in the end."""
    name = f'kbroker-check-{os.getpid()}-{next(_numbers)}'
    try:
        podman('run', '--detach', '--name', name, *options, image, *command)
        yield name
    finally:
        podman('rm', '--force', '--time', '0', name)


@contextlib.contextmanager
def volume():
    """Create a volume, and yield its name. Remove it in the end."""
    name = f'kbroker-check-{os.getpid()}-{next(_numbers)}'
    podman('volume', 'create', name)
    try:
        yield name
    finally:
        podman('volume', 'rm', '--force', name)


@contextlib.contextmanager
def secret(text):
    """Create a secret, and yield its name. Remove it in the end."""
    name = f'kbroker-check-{os.getpid()}-{next(_numbers)}'
    with tempfile.NamedTemporaryFile('w') as file:
        file.write(text)
        file.flush()
        podman('secret', 'create', name, file.name)
    try:
        yield name
    finally:
        podman('secret', 'rm', name)


def logs_when(name, text):
    """Return the log of a container as soon as it has `text`. End the program if the container ends before."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        is_running = state_of(name)['Running']
        log = podman('logs', name)
        if text in log:
            return log
        if not is_running or time.monotonic() > end_s:
            sys.exit(f'expected {text!r} in the log of the container:\n{log}')
        time.sleep(0.1)


def state_of(name):
    return json.loads(podman('container', 'inspect', '--format', '{{json .State}}', name))


def one_run(image, *options, command=(), status=0):
    """Run a container to its end, and return what it printed."""
    return podman('run', '--rm', *options, image, *command, status=status)
