"""kbroker-dump-log. It prints the contents of a partition's files, as Kafka's own tool does."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kbroker_tools.base.command import SETTINGS, Command, version_option
from kbroker_tools.dump.options import MAX_INT32, OPTIONS, PROGRAM, STRING_DECODER, DumpOptions, Option
from kbroker_tools.dump.run import dump

DECODER_CLASSES = tuple(STRING_DECODER.replace('String', kind) for kind in ('String', 'Integer', 'Long'))

EPILOG = """The exit status is 0, 1 if something could not be read, or 2 for wrong usage (Kafka's tool: 1). Kafka's tool
reports and skips some damage: a wrong checksum, an index that contradicts its log, a torn end. This command reports it
in the same way, and it does not change the exit status. Damage that stops Kafka's tool ends only the batch or file
here, and the dump continues with the next one, unless --compat is given."""


def table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(OPTIONS):
        function = click.option(f'--{option.name}', option.key, **_parameters(option))(function)
    return function


def _parameters(option: Option) -> dict[str, Any]:
    parameters: dict[str, Any] = {'help': option.help_text, 'default': option.default, 'metavar': option.metavar}
    if option.is_flag:
        parameters['is_flag'] = True
    elif option.is_number:
        parameters |= {'type': click.IntRange(0, MAX_INT32), 'show_default': True}
    elif option.choices:
        parameters |= {'type': click.Choice(option.choices), 'show_default': option.default is not None}
    elif option.optional:
        parameters |= {'is_flag': False, 'flag_value': option.optional}
    return parameters


@click.command(cls=Command, context_settings=SETTINGS, epilog=EPILOG)
@click.argument('paths', nargs=-1, metavar='[PATH]...')
@table_options
@version_option
@click.pass_context
def main(context: click.Context, /, paths: tuple[str, ...], **values: Any) -> None:
    """Print the contents of a partition's files: batches and records of .log and .checkpoint files, entries of .index,
    .timeindex, .txnindex and .snapshot files. The output is that of kafka-dump-log 4.4, byte for byte.

    PATH: a file, a pattern such as 'orders-*/*.log', a partition's directory (its segments in order), or a log
    directory (all of its partitions).

    \b
      kbroker-dump-log --print-data-log /var/lib/kafka/orders-0
      kbroker-dump-log --print-data-log --where 'offset>=1000 and transactional' orders-0
      kbroker-dump-log --offsets-decoder --follow __consumer_offsets-12
    """
    options = DumpOptions(paths, **values)
    _check(options)
    context.exit(dump(options))


def _check(options: DumpOptions) -> None:
    """Raise click.UsageError if no file is given or if a decoder is unknown."""
    if not options.paths and not options.listed_files:
        raise click.UsageError('give the files to dump as arguments or with --files FILE,FILE,...')
    for decoder in (options.value_decoder_class, options.key_decoder_class):
        if decoder is not None and decoder not in DECODER_CLASSES:
            raise click.UsageError(f'{decoder} is a Java class that cannot be run here; those known are '
                                   f'{", ".join(DECODER_CLASSES)}')


if __name__ == '__main__':
    main(prog_name=PROGRAM)
