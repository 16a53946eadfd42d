"""kbroker-features. It prints and changes the feature levels of a cluster, as kafka-features does (KIP-584, KIP-1022).

Before a change that an earlier release of Apache Kafka cannot read, it says so and asks.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import click

from kbroker import __version__
from kbroker.client.admin_requests import raise_transient
from kbroker.client.errors import check, known_code
from kbroker.metadata.feature_updates import UpgradeType
from kbroker.metadata.features import METADATA_VERSION, RELEASES, SUPPORTED_FEATURES, costs_of, parse_level
from kbroker.protocol import messages
from kbroker_tools.base.command import SETTINGS, Group, ToolError, output_options, version_option
from kbroker_tools.base.render import Output
from kbroker_tools.base.view import View
from kbroker_tools.cluster.opening import broker_options, cluster_options, live, open_view

METADATA_LEVELS = {
    7: '3.3-IV3', 8: '3.4-IV0', 9: '3.5-IV0', 10: '3.5-IV1', 11: '3.5-IV2', 12: '3.6-IV0', 13: '3.6-IV1', 14: '3.6-IV2',
    15: '3.7-IV0', 16: '3.7-IV1', 17: '3.7-IV2', 18: '3.7-IV3', 19: '3.7-IV4', 20: '3.8-IV0', 21: '3.9-IV0',
    22: '4.0-IV0', 23: '4.0-IV1', 24: '4.0-IV2', 25: '4.0-IV3', 26: '4.1-IV0', 27: '4.1-IV1', 28: '4.2-IV0',
    29: '4.2-IV1', 30: '4.3-IV0', 31: '4.4-IV0', 32: '4.4-IV1', 33: '4.4-IV2', 34: '4.5-IV0'}
"""Maps each level of metadata.version to its name in Kafka."""

FC = TypeVar('FC', bound=Callable[..., Any])


class FeatureLevels(NamedTuple):
    """The features of a cluster or of a directory.

    `supported` maps each feature to its lowest and highest level. `epoch` is the offset of the metadata log at which
    the levels were read.
    """

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int


class Change(Enum):
    """A kind of change: the words for its effect, for a dry run and for a failure."""

    UPGRADE = 'was upgraded to {level}', 'can be upgraded to {level}', 'upgrade {name} to {level}'
    DOWNGRADE = 'was downgraded to {level}', 'can be downgraded to {level}', 'downgrade {name} to {level}'
    DISABLE = 'was disabled', 'can be disabled', 'disable {name}'


@click.group(cls=Group, context_settings=SETTINGS)
@cluster_options
@version_option
@click.pass_context
def main(context: click.Context, /, **common: Any) -> None:
    """Print and change the feature levels of a cluster.

    The levels decide which releases of Apache Kafka can open the log directory.
    """
    given = {name: value for name, value in common.items() if value is not None}
    context.default_map = dict.fromkeys(main.list_commands(context), given)


def which_levels(function: FC) -> FC:
    for option in (
        click.option('--dry-run', is_flag=True, help='Let the broker check the change, but not make it.'),
        click.option('--feature', 'features', metavar='NAME=LEVEL', multiple=True, help='The level of one feature; '
                     'repeatable.'),
        click.option('--release-version', 'release', type=click.Choice(list(RELEASES)), metavar='VERSION',
                     help=f'The levels of all features in a release of Apache Kafka: {" or ".join(RELEASES)}.'),
    ):
        function = option(function)
    return function


unsafe_option = click.option('--unsafe', is_flag=True, help='Allow a change that may lose metadata.')


# ---- describe

@main.command()
@cluster_options
@output_options
def describe(as_json: bool, **place: Any) -> None:
    """Print the supported and the finalized level of each feature."""
    view, output = open_view(**place), Output(as_json)
    found = levels_of_cluster(view) if view.is_live else levels_of_directory(view)
    for name, (low, high) in sorted(found.supported.items()):
        level = found.finalized.get(name, 0)
        if as_json:
            output.row({'feature': name, 'supported_min_version': low, 'supported_max_version': high,
                        'finalized_version_level': level, 'epoch': found.epoch})
            continue
        texts = [name_of(name, number) for number in (low, high, level)]
        output.line(f'Feature: {name:<42}SupportedMinVersion: {texts[0]:<17}SupportedMaxVersion: {texts[1]:<17}'
                    f'FinalizedVersionLevel: {texts[2]:<17}Epoch: {found.epoch}')


def name_of(feature: str, level: int) -> str:
    """Return a level as Kafka prints it: a level of metadata.version by its name, any other level as a number."""
    return METADATA_LEVELS.get(level, f'UNKNOWN [{level}]') if feature == METADATA_VERSION else str(level)


def levels_of_cluster(view: View) -> FeatureLevels:
    cluster = live(view).cluster
    request = messages.ApiVersionsRequest(client_software_name='kbroker', client_software_version=__version__)
    answer = cluster.retrying(lambda: cluster.any().call(request), 'asking for the features')
    check(answer.error_code, f'{view.place}: ApiVersions')
    return FeatureLevels({row.name: (row.min_version, row.max_version) for row in answer.supported_features},
                         {row.name: row.max_version_level for row in answer.finalized_features},
                         answer.finalized_features_epoch)


def levels_of_directory(view: Any) -> FeatureLevels:
    """Return the levels in the metadata log of a directory. The supported levels are those of this kbroker."""
    image = view.metadata
    if image is None:
        raise ToolError(f'{view.place}: found no metadata that can be read')
    return FeatureLevels(SUPPORTED_FEATURES, image.finalized_features, image.metadata_offset)


# ---- changes

@main.command()
@which_levels
@click.option('--yes', is_flag=True, help='Do not ask before a change that shuts earlier releases of Kafka out.')
@broker_options
def upgrade(release: str | None, features: tuple[str, ...], dry_run: bool, yes: bool, **place: Any) -> None:
    """Raise the levels of features.

    If an earlier release of Apache Kafka cannot open the log directory afterwards, the command says so and asks.
    """
    wanted = wanted_levels(release, features)
    view = live(open_view(**place), 'upgrade')
    finalized = levels_of_cluster(view).finalized
    costs = costs_of({name: level for name, level in wanted.items() if level > finalized.get(name, 0)})
    for cost in costs:
        Output().note(cost)
    if costs and not dry_run and not yes:
        require_consent()
    update(view, Change.UPGRADE, wanted, UpgradeType.UPGRADE, dry_run)


@main.command()
@which_levels
@unsafe_option
@broker_options
def downgrade(release: str | None, features: tuple[str, ...], dry_run: bool, unsafe: bool, **place: Any) -> None:
    """Lower the levels of features."""
    wanted = wanted_levels(release, features)
    update(live(open_view(**place), 'downgrade'), Change.DOWNGRADE, wanted, kind_of_downgrade(unsafe), dry_run)


@main.command()
@click.option('--feature', 'features', metavar='NAME', multiple=True, required=True, help='The feature; repeatable.')
@click.option('--dry-run', is_flag=True, help='Let the broker check the change, but not make it.')
@unsafe_option
@broker_options
def disable(features: tuple[str, ...], dry_run: bool, unsafe: bool, **place: Any) -> None:
    """Lower features to level 0."""
    update(live(open_view(**place), 'disable'), Change.DISABLE, dict.fromkeys(features, 0), kind_of_downgrade(unsafe),
           dry_run)


def kind_of_downgrade(is_unsafe: bool) -> UpgradeType:
    return UpgradeType.UNSAFE_DOWNGRADE if is_unsafe else UpgradeType.SAFE_DOWNGRADE


def wanted_levels(release: str | None, features: tuple[str, ...]) -> dict[str, int]:
    """Return {feature: level} of the options. Raise click.UsageError if they do not fit."""
    if (release is not None) == bool(features):
        raise click.UsageError('give one of --release-version and --feature')
    if release is not None:
        return dict(RELEASES[release])
    wanted: dict[str, int] = {}
    for text in features:
        try:
            name, level = parse_level(text)
        except ValueError as error:
            raise click.UsageError(f'--feature: {error}') from None
        if name in wanted:
            raise click.UsageError(f'--feature: found {name} twice, expected it once')
        wanted[name] = level
    return wanted


def require_consent() -> None:
    """Ask the user whether to go on. Raise ToolError unless the answer is yes."""
    try:
        is_wanted = click.confirm('Change the levels?', err=True)
    except click.Abort:
        is_wanted = False
    if not is_wanted:
        raise ToolError('no level was changed: answer y, or give --yes')


def update(view: View, change: Change, wanted: Mapping[str, int], kind: UpgradeType, is_dry_run: bool) -> None:
    """Send the change, and print a line for each feature. Raise ToolError if the broker refuses it."""
    cluster = live(view).cluster
    request = messages.UpdateFeaturesRequest(validate_only=is_dry_run, feature_updates=[
        messages.UpdateFeaturesRequest.FeatureUpdateKey(
            feature=name, max_version_level=level, upgrade_type=int(kind)) for name, level in wanted.items()])

    def ask() -> Any:
        answer = cluster.controller().call(request, min_version=1)      # version 0 cannot validate only
        raise_transient(answer, 'UpdateFeatures')
        return answer

    answer = cluster.retrying(ask, 'changing feature levels')
    refused = {row.feature: row for row in answer.results if row.error_code}
    if answer.error_code:
        refused = dict.fromkeys(wanted, answer)
    done, possible, failed = change.value
    output = Output()
    for name, level in sorted(wanted.items()):
        words = {'name': name, 'level': level}
        if name in refused:
            row = refused[name]
            output.line(f'Could not {failed.format(**words)}. '
                        f'{row.error_message or known_code(row.error_code).name}')
        else:
            output.line(f'{name} {(possible if is_dry_run else done).format(**words)}.')
    if refused:
        raise ToolError(f'{len(refused)} out of {len(wanted)} operation(s) failed.')


if __name__ == '__main__':
    main(prog_name='kbroker-features')
