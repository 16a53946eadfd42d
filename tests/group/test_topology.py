"""The configuration of topologies of streams groups for the topics that exist."""
import pytest
from support.worlds.stepwise_work import StepwiseWork

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import run_to_end
from kbroker.group.streams.topology import (
    ConfiguredTopology,
    InternalTopic,
    Status,
    Subtopology,
    configure,
    required_topics,
)

JOIN = Subtopology('0', ['a', 'b'], copartition_groups=[['a', 'b']])
COUNT = [Subtopology('0', ['a', 'b'], repartition_sink_topics=['r']),
         Subtopology('1', repartition_source_topics=[InternalTopic('r')],
                     changelogs=[InternalTopic('r-log', configs=(('cleanup.policy', 'compact'),))])]


def two_repartition_topics(first, second, existing_sources=()):
    """Return a topology whose last subtopology joins the repartition topics r1 and r2 with `existing_sources`. `first`
    and `second` are the specified numbers of partitions of r1 and r2."""
    return [Subtopology('0', ['a'], repartition_sink_topics=['r1']),
            Subtopology('1', ['b'], repartition_sink_topics=['r2']),
            Subtopology('2', existing_sources, [InternalTopic('r1', first), InternalTopic('r2', second)],
                        copartition_groups=[['r1', 'r2', *existing_sources]])]


@pytest.mark.parametrize(('topology', 'existing', 'tasks'), [
    pytest.param([Subtopology('0', ['a'])], {'a': 3}, {'0': 3}, id='one source'),
    pytest.param([Subtopology('0', ['a', 'b'])], {'a': 3, 'b': 5}, {'0': 5}, id='the largest source'),
    pytest.param([JOIN], {'a': 3, 'b': 3}, {'0': 3}, id='copartitioned sources'),
    pytest.param(COUNT, {'a': 3, 'b': 5, 'r': 5, 'r-log': 5}, {'0': 5, '1': 5}, id='a repartition topic'),
])
def test_a_topology_whose_topics_exist_is_ready(topology, existing, tasks):
    assert run_to_end(configure(topology, existing)) == ConfiguredTopology(tasks)


@pytest.mark.parametrize(('topology', 'existing', 'counts'), [
    pytest.param(COUNT, {'a': 3, 'b': 5}, {'r': 5, 'r-log': 5}, id='as large as the largest source that leads there'),
    pytest.param([Subtopology('0', ['a'], repartition_sink_topics=['r']),
                  Subtopology('1', repartition_source_topics=[InternalTopic('r', 7)])], {'a': 3}, {'r': 7},
                 id='its own number'),
    pytest.param([Subtopology('0', ['a'], repartition_sink_topics=['r']),
                  Subtopology('1', repartition_source_topics=[InternalTopic('r')], repartition_sink_topics=['s']),
                  Subtopology('2', repartition_source_topics=[InternalTopic('s')])], {'a': 3}, {'r': 3, 's': 3},
                 id='one after the other'),
    pytest.param([Subtopology('0', ['a'], [InternalTopic('r')], ['r'])], {'a': 3}, {'r': 3}, id='a loop with a source'),
    pytest.param([Subtopology('0', ['a'], repartition_sink_topics=['r']),
                  Subtopology('1', ['b'], repartition_sink_topics=['r']),
                  Subtopology('2', repartition_source_topics=[InternalTopic('r')])], {'a': 3, 'b': 5}, {'r': 3},
                 id='the first of two that write it counts'),
    pytest.param([Subtopology('0', ['a'], [InternalTopic('r')], ['s']),
                  Subtopology('1', ['b'], repartition_sink_topics=['r']),
                  Subtopology('2', repartition_source_topics=[InternalTopic('s')])], {'a': 3, 'b': 5},
                 {'r': 5, 's': 3}, id='a source that is not decided yet does not count'),
    pytest.param([Subtopology('0', ['a'], repartition_sink_topics=['r']),
                  Subtopology('1', repartition_source_topics=[InternalTopic('r')]),
                  Subtopology('2', repartition_source_topics=[InternalTopic('r', 2)])], {'a': 3}, {'r': 2},
                 id='one of two readers fixes the number'),
    pytest.param(two_repartition_topics(0, 0), {'a': 3, 'b': 5}, {'r1': 5, 'r2': 5}, id='copartitioned, all open'),
    pytest.param(two_repartition_topics(4, 0), {'a': 3, 'b': 5}, {'r1': 4, 'r2': 4}, id='copartitioned, one fixed'),
    pytest.param(two_repartition_topics(0, 0, ['c']), {'a': 3, 'b': 5, 'c': 2}, {'r1': 2, 'r2': 2},
                 id='copartitioned with a source'),
])
def test_missing_internal_topics_are_to_be_created_with_the_partitions_that_the_tasks_need(topology, existing, counts):
    found = run_to_end(configure(topology, existing))
    assert found.status is Status.MISSING_INTERNAL_TOPICS
    assert found.detail == f'Internal topics are missing: {", ".join(counts)}'
    assert {topic.name: topic.partitions for topic in found.missing} == counts


def test_an_internal_topic_keeps_what_the_application_asked_for():
    topic = run_to_end(configure(COUNT, {'a': 3, 'b': 5, 'r': 5})).missing[0]
    assert topic == InternalTopic('r-log', 5, 0, (('cleanup.policy', 'compact'),))


@pytest.mark.parametrize(('topology', 'existing', 'status', 'detail'), [
    pytest.param([JOIN], {'a': 3}, Status.MISSING_SOURCE_TOPICS, 'Source topics b are missing.', id='a source'),
    pytest.param([JOIN], {}, Status.MISSING_SOURCE_TOPICS, 'Source topics a, b are missing.', id='two sources'),
    pytest.param([JOIN], {'a': 3, 'b': 4}, Status.INCORRECTLY_PARTITIONED_TOPICS, 'a (3), b (4)', id='sources differ'),
    pytest.param(COUNT, {'a': 3, 'b': 5, 'r': 4}, Status.INCORRECTLY_PARTITIONED_TOPICS,
                 'r has 4 partitions; it needs 5', id='an internal topic of another size'),
    pytest.param(two_repartition_topics(4, 5), {'a': 3, 'b': 5}, Status.INCORRECTLY_PARTITIONED_TOPICS,
                 'r1 (4), r2 (5)', id='fixed numbers differ'),
    pytest.param(two_repartition_topics(4, 0, ['c']), {'a': 3, 'b': 5, 'c': 2},
                 Status.INCORRECTLY_PARTITIONED_TOPICS, 'r1 asks for 4', id='a fixed number differs from a source'),
])
def test_a_topology_that_cannot_work_yet_has_a_status(topology, existing, status, detail):
    found = run_to_end(configure(topology, existing))
    assert (found.status, found.tasks, found.missing) == (status, {}, ())
    assert detail in found.detail


@pytest.mark.parametrize('topology', [
    pytest.param([Subtopology('0', repartition_source_topics=[InternalTopic('r')], repartition_sink_topics=['r'])],
                 id='a loop'),
    pytest.param([Subtopology('0', ['a'], [InternalTopic('r')])], id='no subtopology writes it'),
    pytest.param([Subtopology('0', (), repartition_sink_topics=['r']),
                  Subtopology('1', ['a'], [InternalTopic('r')])], id='a subtopology without sources writes it'),
    pytest.param([Subtopology('0', ['a']), Subtopology('1')], id='a subtopology without sources'),
])
def test_a_topology_whose_numbers_cannot_be_found_is_invalid(topology):
    with pytest.raises(KafkaError) as found:
        run_to_end(configure(topology, {'a': 3}))
    assert found.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_all_topics_of_a_topology_are_required():
    assert required_topics(COUNT) == {'a', 'b', 'r', 'r-log'}


def test_a_long_chain_of_repartition_topics_is_followed_in_short_parts():
    """A previous version of the broker checked all topics of the chain again for each topic. That took half a second
    for a thousand topics."""
    last = 2_000
    chain = [Subtopology(str(number), [], [InternalTopic(f'r{number}')], [f'r{number + 1}'])
             for number in range(last, 0, -1)]
    topology = [*chain, Subtopology('0', ['a'], (), ['r1'])]
    work, found = StepwiseWork(), []
    work.start(configure(topology, {'a': 3}), lambda error, configured: found.append(error or configured.tasks))
    work.finish()
    assert found == [dict.fromkeys([*(str(number) for number in range(last, 0, -1)), '0'], 3)]
    work.assert_parts_were_short()


def test_many_copartition_groups_of_one_subtopology_are_checked_in_short_parts():
    """A previous version of the broker checked all repartition topics of the subtopology again for each copartition
    group."""
    topics = [InternalTopic(f'r{number}', 3) for number in range(1_600)]
    topology = [Subtopology('0', ['a'], topics, copartition_groups=[[topic.name] for topic in topics])]
    work, found = StepwiseWork(), []
    work.start(configure(topology, {'a': 3}), lambda error, configured: found.append(error or configured.tasks))
    work.finish()
    assert found == [{'0': 3}]
    work.assert_parts_were_short()
