"""The plans of chains, in which kbroker and releases of Apache Kafka open one directory one after the other."""
import pathlib
from argparse import ArgumentTypeError

import pytest
from support.kafka.chain_plans import (
    BIRTHS,
    CHAINS_OF_A_RUN,
    FIXED_COUNT,
    FIXED_LENGTH,
    KBROKER,
    LEVELS,
    PROGRAMS,
    RANDOM_LENGTHS,
    TEST,
    chains_left_out,
    chains_of_run,
    chains_of_text,
    count_commits,
    fixed_plans,
    random_plan,
)

IDS = [f'{TEST}[chain-{number}]' for number in range(FIXED_COUNT)]
SOAK = [random_plan(seed) for seed in range(200)]


def levels_at(plan):
    """Yield each link with the metadata.version that it finds."""
    level = LEVELS[plan.birth.release]
    for link in plan.links:
        yield link, level
        level = LEVELS[link.raised_to] if link.raised_to else level


def test_the_fixed_plans_have_every_pair_after_a_stop_and_after_a_kill_and_most_have_kbroker():
    pairs = [pair for plan in fixed_plans() for pair in plan.pairs]
    assert set(pairs) == {(first, second, is_killed) for first in PROGRAMS for second in PROGRAMS
                          for is_killed in (False, True)}
    assert sum(KBROKER in pair for pair in pairs) > len(pairs) / 2
    assert {len(plan.links) for plan in fixed_plans()} == {FIXED_LENGTH}


def test_the_fixed_plans_have_every_birth_both_kinds_of_clients_hand_overs_and_raised_levels():
    plans = fixed_plans()
    assert {plan.birth for plan in plans} == set(BIRTHS)
    assert {plan.has_lasting_clients for plan in plans} == {False, True}
    in_groups = {pair[:2] for plan in plans if plan.has_groups for pair in plan.pairs}
    assert in_groups >= {(first, second) for first in PROGRAMS for second in PROGRAMS if KBROKER in (first, second)}
    links = [link for plan in plans for link in plan.links]
    assert {link.is_handed_over for link in links if link.program == KBROKER and link.is_killed} == {False, True}
    assert {link.raised_to for link in links} == {'', '4.3', '4.4'}
    assert any(plan.birth.program == '4.4' == plan.birth.release and plan.links[0].program == KBROKER for plan in plans)


@pytest.mark.parametrize('plans', [fixed_plans(), SOAK], ids=['fixed', 'random'])
def test_each_plan_has_kbroker_and_no_release_of_kafka_meets_a_level_that_it_does_not_know(plans):
    for plan in plans:
        assert KBROKER in [link.program for link in plan.links], plan
        for link, level in levels_at(plan):
            assert link.program == KBROKER or LEVELS[link.program] >= level, plan
            assert not link.raised_to or LEVELS[link.raised_to] > level, plan


@pytest.mark.parametrize('plans', [fixed_plans(), SOAK], ids=['fixed', 'random'])
def test_only_a_killed_kbroker_is_handed_over_and_the_last_program_is_stopped(plans):
    for plan in plans:
        assert not plan.links[-1].is_killed
        for link, (_, following, _) in zip(plan.links, plan.pairs, strict=False):
            assert not link.is_handed_over or (link.program == KBROKER and link.is_killed and following != KBROKER)


def test_a_plan_is_the_same_each_time_and_another_for_another_seed():
    assert random_plan(7) == random_plan(7)
    assert len(set(SOAK)) > 190
    assert {len(plan.links) for plan in SOAK} == set(RANDOM_LENGTHS)


def test_consecutive_commits_take_all_fixed_chains_in_turn():
    runs = [chains_of_run(1000 + number) for number in range(FIXED_COUNT // CHAINS_OF_A_RUN)]
    assert set().union(*runs) == set(range(FIXED_COUNT))
    assert sum(map(len, runs)) == FIXED_COUNT


def test_the_option_selects_all_chains_or_some():
    assert chains_of_text('all') == set(range(FIXED_COUNT))
    assert chains_of_text('3,17') == {3, 17}


@pytest.mark.parametrize('text', ['30', 'some', '1,', '-1', '²', ''])
def test_another_value_of_the_option_is_refused(text):
    with pytest.raises(ArgumentTypeError, match=f'found {text}, expected all, or numbers from 0 to 29'):
        chains_of_text(text)


def test_a_run_keeps_the_selected_chains_those_that_it_was_given_by_id_and_all_other_tests(tmp_path):
    others = ['tests/test_words.py::test_words', 'tests/jvm/test_chains.py::test_another[3]']
    assert chains_left_out(others, None, tmp_path, []) == set()
    assert chains_left_out([*IDS, *others], {3}, tmp_path, [f'/home/{IDS[5]}']) == set(IDS) - {IDS[3], IDS[5]}
    assert chains_left_out(IDS, None, tmp_path, []) == set(IDS[CHAINS_OF_A_RUN:])


def test_a_directory_without_git_has_no_commits(tmp_path):
    assert count_commits(tmp_path) == 0
    assert count_commits(pathlib.Path(__file__).parent) >= 0
