"""What tests of the simulator's commands share."""

from pathlib import Path

import pytest
from sim_builders import table_file


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The engine of ``sim_builders.make_table``, as the commands take it."""
    return table_file(tmp_path)
