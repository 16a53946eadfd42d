@pytest.fixture  # noqa: F821 -- this text is appended to a conftest.py, which imports pytest
def kafka_url(kafka):
    return kafka.bootstrap_servers
