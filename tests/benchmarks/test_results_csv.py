"""Result files of benchmarks: merging runs by key."""

import pytest

from benchmarks.results_csv import merge, read

COLUMNS = ("system", "n", "us")


def test_a_second_run_replaces_rows_of_the_same_key_and_keeps_the_others(tmp_path):
    path = tmp_path / "results" / "file.csv"
    merge(path, COLUMNS, COLUMNS[:2], [["a", 1, 5.0], ["a", 2, 6.0]], ["first run", "GPU"])
    merge(path, COLUMNS, COLUMNS[:2], [["a", 2, 7.0], ["b, c", 1, 8.0]], ["second run", "GPU"])
    comments, columns, rows = read(path)
    assert comments == ["first run", "GPU", "second run"]
    assert columns == list(COLUMNS)
    assert rows == [["a", "1", "5.0"], ["a", "2", "7.0"], ["b, c", "1", "8.0"]]


def test_a_file_with_other_columns_is_left_alone(tmp_path):
    path = tmp_path / "file.csv"
    merge(path, COLUMNS, COLUMNS[:2], [["a", 1, 5.0]], [])
    with pytest.raises(ValueError, match="expected the columns"):
        merge(path, ("system", "us"), ("system",), [["a", 1.0]], [])
    assert read(path)[2] == [["a", "1", "5.0"]]
