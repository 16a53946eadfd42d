"""The commands of setup.py that write an sdist and a wheel. Each build of a commit writes the same bytes.

Both archives contain the site.

The archives contain nothing of the machine: no owner, no umask, and no time but SOURCE_DATE_EPOCH, which `make package`
sets to the time of the last commit. Without SOURCE_DATE_EPOCH, files keep their own times.
"""
import gzip
import importlib.util
import os
import pathlib
import runpy
import stat
import tarfile

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist


class SameSdist(sdist):
    """A command that writes the sdist."""

    def run(self):
        # setuptools adds each file of an earlier sdist again, if its list is still there.
        pathlib.Path(self.get_finalized_command('egg_info').egg_info, 'SOURCES.txt').unlink(missing_ok=True)
        super().run()

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        add_site(self, base_dir)

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        if format != 'gztar':
            raise ValueError(f'the format of the sdist: found {format}, expected gztar')
        name = f'{base_name}.tar.gz'
        pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
        with open(name, 'wb') as file, \
                gzip.GzipFile(filename='', mode='wb', fileobj=file, mtime=0) as packed, \
                tarfile.open(mode='w', fileobj=packed, format=tarfile.PAX_FORMAT) as tar:
            for path in [base_dir, *sorted(map(str, pathlib.Path(base_dir).rglob('*')))]:
                tar.add(path, recursive=False, filter=without_the_machine)
        return name


class SameWheel(bdist_wheel):
    """A command that writes the wheel."""

    def write_wheelfile(self, wheelfile_base, *arguments, **named):
        super().write_wheelfile(wheelfile_base, *arguments, **named)
        add_site(self, self.bdist_dir)
        for path in pathlib.Path(self.bdist_dir).rglob('*'):
            path.chmod(mode_without_umask(path.is_dir(), path.suffix == '.so'))


def add_site(command, directory):
    """Build the pages of a checkout into the archive that `kbroker docs` opens, below `directory`.

    An sdist has this archive instead of the pages, and a wheel that is built of the sdist gets it from there. No build
    requires mkdocs, because pip would fetch it for each user who builds.
    """
    if not os.path.exists('docs/build.py'):
        return
    if importlib.util.find_spec('mkdocs') is None:
        command.warn('found no mkdocs: `kbroker docs` of this package will have nothing to open')
        return
    runpy.run_path('docs/build.py')['write_archive'](pathlib.Path(directory, 'kbroker', 'daemon', 'site.tar.xz'))


def without_the_machine(member):
    """Return a member of the sdist without its owner, and with the same mode and time on each machine."""
    member.uid = member.gid = 0
    member.uname = member.gname = ''
    member.mode = mode_without_umask(member.isdir(), bool(member.mode & stat.S_IXUSR))
    member.mtime = int(os.environ.get('SOURCE_DATE_EPOCH', member.mtime))
    return member


def mode_without_umask(directory, program):
    return 0o755 if directory or program else 0o644
