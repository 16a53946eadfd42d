"""The stories of the page about testing pass: duplicates, transactions that hang, and a zombie."""
from support.runner.pages import blocks
from support.runner.suites import Suite

STORIES, TESTS = 4, 8


def test_the_stories_of_the_page_about_testing_pass(tmp_path):
    """Each story is a test file, because its imports and its program are those of a file."""
    first, *others = blocks('docs/testing.md', 'python')[-STORIES:]
    suite = Suite(tmp_path, first)
    for number, story in enumerate(others):
        (tmp_path / f'test_story_{number}.py').write_text(story)
    run = suite.run()
    assert f'{TESTS} passed' in run.output, run.output
