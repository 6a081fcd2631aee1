"""Nothing can be tested without the program and the unpacked data: say so once, not in every test."""
import nb
import pytest


def pytest_sessionstart(session):
    if not nb.BIN.exists():
        pytest.exit(f"{nb.BIN} is not there: ./dev build", 2)
    if not nb.MODELS:
        pytest.exit("the test data is not unpacked: tools/unpack_fixtures.sh", 2)
