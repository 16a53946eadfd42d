"""Errors of the operating system about files, in one line: the fault, the expectation and the remedy.

The module is imported only after an error, because the start of a broker would be slower with it.
"""
from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable

OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def describe(error: OSError, log_directory: str | None = None) -> str:
    """Return one line for the operator about an error of a file.

    `log_directory` is the log directory that the process needs to write, or None if it only reads files.
    """
    reason = error.strerror or str(error)
    if not isinstance(error.filename, str) or not error.filename:
        return f'{reason}: {_describe_descriptors("", None)}' if error.errno in OUT_OF_DESCRIPTORS else reason
    path = os.path.abspath(error.filename)
    writer = None if log_directory is None else os.path.abspath(log_directory)
    describe_code = _BY_CODE.get(error.errno or 0)
    details = None if describe_code is None else describe_code(path, writer)
    return f'{error.filename}: {reason}' + (f': {details}' if details else '')


# -- permissions

READ = 'read it', stat.S_IRUSR, os.R_OK
WRITE = 'write to it', stat.S_IWUSR, os.W_OK
ENTER = 'enter it', stat.S_IXUSR, os.X_OK
CREATE = 'create files in it', stat.S_IWUSR, os.W_OK
"""The rights that a message names: the words, the bit of a mode that gives the owner the right, and the mode of access.
"""

def _describe_permission(path: str, log_directory: str | None) -> str:
    """Describe the first file or directory on the way to `path` that refuses this user."""
    needs_write = log_directory is not None and (_is_within(path, log_directory) or _is_within(log_directory, path))
    found = _first_refusal(path, needs_write)
    place, right, bit = found or (path, '', 0)
    state = os.stat(place) if found else None
    if state is None or (state.st_uid == os.geteuid() and state.st_mode & bit):
        return (f'the modes of the path let {_this_user()} use it, so something else refuses it: a file attribute '
                '(lsattr), SELinux or AppArmor. For a volume of a container, SELinux expects the option :Z')
    text = (f'found {place} of {_user(state.st_uid)} with mode {stat.S_IMODE(state.st_mode):04o}, expected that '
            f'{_this_user()} may {right}. ')
    return text + _permission_remedy(path, place, state, right, log_directory)


def _first_refusal(path: str, needs_write: bool) -> tuple[str, str, int] | None:
    """Return the first file or directory that refuses this user, the missing right and its bit for the owner. Return
    None if there is none.
    """
    above = _directories_above(path)
    wanted = [(directory, *ENTER) for directory in above]
    if os.path.lexists(path):
        wanted.append((path, *READ))
        if os.path.isdir(path):
            wanted.append((path, *ENTER))
        if needs_write:
            wanted += [(path, *(CREATE if os.path.isdir(path) else WRITE)), (above[-1], *CREATE)]
    else:
        wanted.append((above[-1], *CREATE))
    return next(((place, right, bit) for place, right, bit, mode in wanted
                 if os.path.lexists(place) and not os.access(place, mode, effective_ids=True)), None)


def _permission_remedy(path: str, place: str, state: os.stat_result, right: str, log_directory: str | None) -> str:
    user, group = os.geteuid(), os.getegid()
    if log_directory is not None and _is_within(place, log_directory):
        if state.st_uid == user:
            return f'Run: chmod -R u+rwX {_quoted(log_directory)}'
        other = f', or start the program as {_user(state.st_uid)}' if state.st_uid else ''
        return f'Run as root: chown -R {user}:{group} {_quoted(log_directory)}{other}'
    if log_directory is not None and _is_within(log_directory, place):
        if right == CREATE[0]:
            return (f'Run as root: install -d -o {user} -g {group} -m 750 {_quoted(log_directory)}, or name another '
                    'directory')
        return f'Let the user enter {place}, or name another directory'
    if state.st_uid == user:
        return f'Run: chmod u+{"x" if right == ENTER[0] else "r" if right == READ[0] else "w"} {_quoted(place)}'
    return f'Let the user {right}, or run the program as {_user(state.st_uid)}'


def _this_user() -> str:
    return _user(os.geteuid())


def _user(user_id: int) -> str:
    """Return the id of a user and, if it is known, the name."""
    import pwd

    try:
        return f'user id {user_id} ({pwd.getpwuid(user_id).pw_name})'
    except KeyError:
        return f'user id {user_id}'


# -- the other faults of a path

def _describe_read_only(path: str, log_directory: str | None) -> str:
    place = log_directory or path
    return (f'found {_existing(path)} on a read-only file system, expected one that can be written. In a container, '
            f'mount a volume at {place}; elsewhere, name another directory')


def _describe_no_space(path: str, log_directory: str | None) -> str:
    place = _existing(path)
    state = os.statvfs(place)
    if state.f_files and not state.f_favail:
        return f'found no free inode of {state.f_files:,} on the file system of {place}: remove files there'
    free, total = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    return (f'found {free:,} of {total:,} bytes free on the file system of {place}: remove files there, or name a '
            'directory on a larger one')


def _describe_quota(path: str, log_directory: str | None) -> str:
    return f'the disk quota of {_this_user()} is used up on the file system of {_existing(path)}: raise it (edquota)'


def _describe_no_directory(path: str, log_directory: str | None) -> str:
    for place in (*_directories_above(path), path):
        if os.path.lexists(place) and not os.path.isdir(place):
            return f'found a file at {place}, expected a directory: move it away, or name another directory'
    return ''


def _describe_missing(path: str, log_directory: str | None) -> str:
    parent = os.path.dirname(path)
    if log_directory is None or os.path.isdir(parent):
        return ''     # a file to read is not there, whether its directory is or not
    return f'found no directory {parent}. Run: mkdir -p {_quoted(parent)}'


def _describe_descriptors(path: str, log_directory: str | None) -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (f'this process may open {soft:,} files, and at most {hard:,}. Raise the limit with ulimit -n, LimitNOFILE '
            'of systemd, or --ulimit nofile of a container')


def _describe_device(path: str, log_directory: str | None) -> str:
    return 'the device failed. The log of the kernel (dmesg) has the details'


_BY_CODE: dict[int, Callable[[str, str | None], str]] = {
    errno.EACCES: _describe_permission,
    errno.EPERM: _describe_permission,
    errno.EROFS: _describe_read_only,
    errno.ENOSPC: _describe_no_space,
    errno.EDQUOT: _describe_quota,
    errno.ENOTDIR: _describe_no_directory,
    errno.EEXIST: _describe_no_directory,
    errno.ENOENT: _describe_missing,
    errno.EMFILE: _describe_descriptors,
    errno.ENFILE: _describe_descriptors,
    errno.EIO: _describe_device,
}


# -- paths

def _directories_above(path: str) -> list[str]:
    """Return the directories above `path`, from the root on."""
    above = []
    while (parent := os.path.dirname(path)) != path:
        above.append(parent)
        path = parent
    return above[::-1] or [path]


def _existing(path: str) -> str:
    """Return the lowest directory that exists among `path` and those above it."""
    while not os.path.isdir(path) and path != '/':
        path = os.path.dirname(path)
    return path


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip('/') + '/')


def _quoted(path: str) -> str:
    from shlex import quote

    return quote(path)
