"""The only way to the disk: everything that the broker reads or writes goes through a `FileSystem` and its `File`s.
Tests replace these objects in order to fail, delay or tear any read or write.
"""
from kbroker.log.fs.descriptors import is_shortage, shared_open_files
from kbroker.log.fs.file import Directory, File, ReadOnlyFile
from kbroker.log.fs.file_system import NO_FILE, SMALL_FILE_BYTES, FileSystem, sync_inline
from kbroker.log.fs.interposed_file import InterposedFile
from kbroker.log.fs.read_only import ReadOnlyFileSystem

__all__ = [
    'NO_FILE',
    'SMALL_FILE_BYTES',
    'Directory',
    'File',
    'FileSystem',
    'InterposedFile',
    'ReadOnlyFile',
    'ReadOnlyFileSystem',
    'is_shortage',
    'shared_open_files',
    'sync_inline',
]
