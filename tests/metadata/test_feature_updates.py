"""Changes of feature levels: which changes are allowed, and which records they write."""
import pytest

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.feature_updates import FeatureUpdate, UpgradeType, records_of_updates
from kbroker.metadata.features import SUPPORTED_FEATURES

UP, DOWN, LOSE = UpgradeType
FRESH = {'metadata.version': 30, 'kraft.version': 1, 'group.version': 1, 'share.version': 1, 'transaction.version': 2,
         'eligible.leader.replicas.version': 1}


def records(*updates, finalized=FRESH):
    made = records_of_updates([FeatureUpdate(*update) for update in updates], finalized, SUPPORTED_FEATURES)
    return [(record.name, record.feature_level) for record in made]


def test_a_level_that_a_feature_has_already_makes_no_record():
    assert records(('group.version', 1, UP), ('share.version', 1, DOWN), ('metadata.version', 30, LOSE)) == []


def test_levels_go_up_and_down():
    assert records(('group.version', 0, DOWN), ('share.version', 0, LOSE), ('transaction.version', 1, DOWN)) == [
        ('group.version', 0), ('share.version', 0), ('transaction.version', 1)]
    assert records(('streams.version', 1, UP)) == [('streams.version', 1)]


def test_share_version_goes_up_without_a_metadata_version_and_down_again():
    assert records(('share.version', 2, UP)) == [('share.version', 2)]
    assert records(('share.version', 1, DOWN), finalized={**FRESH, 'share.version': 2}) == [('share.version', 1)]
    with pytest.raises(KafkaError, match='supports 0 to 2'):
        records(('share.version', 3, UP))


def test_a_refused_downgrade_of_metadata_version_refuses_the_other_features():
    finalized = {**FRESH, 'metadata.version': 33, 'share.version': 2}
    with pytest.raises(KafkaError, match='cannot express'):
        records(('share.version', 1, DOWN), ('metadata.version', 30, DOWN), finalized=finalized)


def test_metadata_version_comes_first():
    finalized = {'metadata.version': 20}
    assert records(('group.version', 1, UP), ('metadata.version', 30, UP), finalized=finalized) == [
        ('metadata.version', 30), ('group.version', 1)]


@pytest.mark.parametrize('update', [
    ('no.such.version', 1, UP), ('no.such.version', 0, LOSE), ('', 1, UP), ('group.version', 2, UP),
    ('group.version', -1, DOWN), ('group.version', 0, UP), ('streams.version', 1, DOWN), ('streams.version', 1, LOSE),
    ('group.version', 1, 0), ('group.version', 1, 4), ('group.version', 1, -1), ('metadata.version', 34, UP),
    ('streams.version', 2, UP),
    ('metadata.version', 6, DOWN), ('metadata.version', 29, DOWN), ('metadata.version', 29, LOSE),
    ('metadata.version', 29, UP), ('kraft.version', 0, DOWN),
])
def test_other_changes_are_refused_and_take_the_good_ones_along(update):
    with pytest.raises(KafkaError) as refused:
        records(('share.version', 0, DOWN), update)
    assert refused.value.code == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(('current', 'wanted', 'is_allowed'), [
    (29, 23, True), (29, 22, False), (22, 17, True), (18, 16, False), (10, 8, True), (30, 29, False),
    (31, 30, True), (32, 31, False), (33, 32, False), (33, 30, False),
])
def test_metadata_version_goes_down_if_no_record_is_lost(current, wanted, is_allowed):
    for upgrade_type in (DOWN, LOSE):
        if is_allowed:
            found = records(('metadata.version', wanted, upgrade_type), finalized={'metadata.version': current})
            assert found == [('metadata.version', wanted)]
        else:
            with pytest.raises(KafkaError, match='cannot express'):
                records(('metadata.version', wanted, upgrade_type), finalized={'metadata.version': current})


def test_eligible_leaders_need_their_metadata_version():
    update = ('eligible.leader.replicas.version', 1, UP)
    with pytest.raises(KafkaError, match='23 or higher'):
        records(update, finalized={'metadata.version': 22})
    assert records(update, ('metadata.version', 23, UP), finalized={'metadata.version': 22}) == [
        ('metadata.version', 23), ('eligible.leader.replicas.version', 1)]


def test_a_feature_that_is_named_twice_is_refused():
    with pytest.raises(KafkaError) as refused:
        records(('group.version', 1, UP), ('group.version', 0, DOWN))
    assert refused.value.code == ErrorCode.INVALID_REQUEST
