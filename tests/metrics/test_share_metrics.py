"""The metrics of share groups: records in flight, redeliveries, lags and dead letters."""
from support.brokers.collected import collected
from support.worlds.dead_letter_world import GROUP, DeadLetterWorld

from kbroker.metrics import share


def test_deliveries_redeliveries_and_dead_letters_are_counted(tmp_path):
    with DeadLetterWorld(tmp_path / 'data') as world:
        assert set(collected(share.collect(world.broker)).values()) == {0}
        world.prepare()
        for _ in range(3):
            world.produce(1, (None, b'value'))
        world.fetch()
        found = collected(share.collect(world.broker))
        assert found['kbroker_share_group_in_flight_records', GROUP] == 3
        assert (found['kbroker_share_acquired_records',], found['kbroker_share_redelivered_records',]) == (3, 0)
        world.disconnect()      # releases the records
        world.fetch()
        found = collected(share.collect(world.broker))
        assert (found['kbroker_share_acquired_records',], found['kbroker_share_redelivered_records',]) == (6, 3)
        world.reject((1, 0))
        found = collected(share.collect(world.broker))
        assert found['kbroker_share_group_in_flight_records', GROUP] == 2
        assert (found['kbroker_share_dead_letters_written',], found['kbroker_share_dead_letters_waiting',]) == (1, 0)
