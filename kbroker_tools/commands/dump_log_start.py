"""The entry point of kbroker-dump-log. It runs a simple call immediately. For any other call, it starts the command,
which also has the help."""
from __future__ import annotations

import os
import sys

from kbroker_tools.dump.options import PROGRAM, read_plainly


def start() -> None:
    options = None if '_KBROKER_DUMP_LOG_COMPLETE' in os.environ else read_plainly(sys.argv[1:])
    if options is None:
        from kbroker_tools.commands.dump_log import main
        main(prog_name=PROGRAM)
        return
    try:
        from kbroker_tools.dump.run import dump
        code = dump(options)
    except BaseException as error:
        from kbroker_tools.base.command import one_line_ending
        with one_line_ending(PROGRAM):
            raise error
    sys.exit(code)


if __name__ == '__main__':
    start()
