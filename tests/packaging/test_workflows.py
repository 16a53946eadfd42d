"""The workflows of hosted CI run commands and files of the project, on the versions of Python that it supports, with no
more rights than they need. `make workflows` judges their syntax and their security.
"""
import pathlib
import re
import tomllib

import pytest
import yaml
from support.runner.pages import ROOT

FILES = {path.name: path.read_text() for path in sorted((ROOT / '.github' / 'workflows').glob('*.yml'))}
WORKFLOWS = {name: yaml.safe_load(text) for name, text in FILES.items()}
JOBS = {f'{name}: {job}': body for name, workflow in WORKFLOWS.items() for job, body in workflow['jobs'].items()}
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())
TARGETS = set(re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), re.MULTILINE))
COMMANDS = [line.strip() for body in JOBS.values() for step in body['steps']
            for line in step.get('run', '').splitlines()]
BUILT = ('build/', 'dist/', 'wheels/', 'saved/', 'image-wheel')
"""The beginnings of the paths that a workflow itself creates."""


def targets_of(command):
    """Return the targets of a line that runs make. Variables, and options with their values, are not targets."""
    words = re.sub(r"""\w+=('[^']*'|"[^"]*"|\S*)""", '', command).split()
    return words[1:] if words[:1] == ['make'] else []


def test_every_make_target_exists():
    named = {target for command in COMMANDS for target in targets_of(command)}
    assert {'check', 'docs', 'package', 'sbom', 'reproducible', 'test-pythons'} <= named
    assert named <= TARGETS


def test_every_file_of_the_project_exists():
    named = {path for command in COMMANDS for path in re.findall(r'(?<![\w$./-])\.?[\w-]+/[\w./-]+', command)
             if not path.startswith(BUILT)}
    assert {'.ci/run', 'packaging/release.py'} <= named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_tests_run_on_each_version_of_the_classifiers_and_wheels_are_built_for_each():
    prefix = 'Programming Language :: Python :: 3.'
    versions = [f'3.{each.removeprefix(prefix)}' for each in PROJECT['project']['classifiers']
                if each.startswith(prefix)]
    assert WORKFLOWS['ci.yml']['jobs']['python']['strategy']['matrix']['python'] == versions
    assert PROJECT['tool']['cibuildwheel']['build'].split() == [
        f'cp{version.replace(".", "")}-*' for version in versions]
    assert PROJECT['project']['requires-python'] == f'>={versions[0]}'


def test_the_wheels_are_tested_by_a_program_that_the_sdist_has():
    settings = PROJECT['tool']['cibuildwheel']
    program, = settings['test-sources']
    assert (ROOT / program).exists()
    assert settings['test-command'] == f'python {program}'
    assert f'graft {pathlib.Path(program).parts[0]}' in (ROOT / 'MANIFEST.in').read_text()
    for command in re.findall(r'kbroker[\w-]*(?= --version)', settings['macos']['test-command']):
        assert command in PROJECT['project']['scripts']


@pytest.mark.parametrize('job', JOBS)
def test_a_job_has_a_time_limit_and_only_the_permissions_that_it_names(job):
    workflow = WORKFLOWS[job.partition(':')[0]]
    assert workflow['permissions'] == {}
    assert JOBS[job]['timeout-minutes'] <= 150
    assert 'permissions' in JOBS[job]


def test_only_the_jobs_that_publish_may_write():
    writers = {job: sorted(right for right, kind in body['permissions'].items() if kind == 'write')
               for job, body in JOBS.items()}
    assert {job: rights for job, rights in writers.items() if rights} == {
        'release.yml: index': ['id-token'], 'release.yml: page': ['contents'],
        'release.yml: registry': ['packages'], 'site.yml: publish': ['id-token', 'pages']}


@pytest.mark.parametrize('name', FILES)
def test_no_secret_is_used_and_each_action_is_pinned_to_a_commit(name):
    assert 'secrets.' not in FILES[name]
    used = re.findall(r'^ *(?:- )?uses: (.*)$', FILES[name], re.MULTILINE)
    assert used
    for action in used:
        assert re.fullmatch(r'[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+', action), action


def test_one_action_has_one_commit_in_all_workflows():
    pins = {}
    for text in FILES.values():
        for action, commit in re.findall(r'uses: ([\w/-]+)@(\w+)', text):
            pins.setdefault(action, set()).add(commit)
    assert {action: commits for action, commits in pins.items() if len(commits) > 1} == {}


def test_a_release_that_is_started_by_hand_publishes_nothing():
    jobs = WORKFLOWS['release.yml']['jobs']
    assert jobs['index']['if'] == "github.event_name == 'push'"
    for job, body in jobs.items():
        if any(kind == 'write' for kind in body['permissions'].values()) and job != 'index':
            assert 'if' not in body
            assert {'index', 'registry'} & set(body['needs']), 'it is skipped with the job that it needs'
