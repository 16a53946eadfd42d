"""The picture of a timeline in the documents is the one that the command draws."""
import pytest
from support.clients.timeline_picture import PICTURE, picture


@pytest.mark.browser
def test_the_picture_of_the_documents_is_that_of_the_command(tmp_path):
    """After a change of the timeline, `python tests/support/clients/timeline_picture.py` writes the picture again."""
    assert picture(tmp_path) == PICTURE.read_text()
