from kbroker.log.fs.descriptors import Reopenable
from kbroker.log.fs.file_system import FileSystem

class LazyFile(Reopenable):
    path: str
    def __init__(self, fs: FileSystem, path: str) -> None: ...
