"""The index of the tasks that members hold, compared with a simple implementation that counts holders and copies all
counts."""
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kbroker.group.streams.task_holders import TaskHolders

PLACES, NUMBERS = 'pq', range(4)
CHANGES = st.lists(st.tuples(
    st.sampled_from(['add', 'remove', 'copy', 'continue with the original']), st.sampled_from(PLACES),
    st.sets(st.sampled_from(NUMBERS))), max_size=30)


def view(holders):
    return {(place, number) for place in PLACES for number in NUMBERS if holders.has(place, number)}


@given(CHANGES)
def test_a_task_is_held_while_one_of_its_holders_has_it_and_copies_are_independent(changes):
    pairs = [(TaskHolders(), Counter())]
    for change, place, numbers in changes:
        holders, counts = pairs[-1]
        if change == 'copy':
            pairs.append((holders.copy(), counts.copy()))
        elif change == 'continue with the original':
            pairs.insert(0, pairs.pop())
        elif change == 'add':
            holders.add(place, numbers)
            counts.update((place, number) for number in numbers)
        else:
            held = {number for number in numbers if counts[place, number]}
            holders.remove(place, dict.fromkeys(held))
            counts.subtract((place, number) for number in held)
        for each, expected in pairs:
            assert view(each) == {key for key, count in expected.items() if count}
