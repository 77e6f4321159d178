"""``--check`` on damaged checkpoints: one line, status 2, no traceback."""

import shutil

import pytest
from test_model_check import SHIPPED, configured

from deploy import serve
from nestedfp.offline.convert import convert

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's and vLLM's own, while they are imported


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    return folder


@pytest.fixture
def checked(tmp_path, capfd):
    """Return what ``--check`` says and its status."""

    def check(model):
        configured(tmp_path, SHIPPED)
        path = tmp_path / "config.yaml"
        path.write_text(path.read_text().replace(str(SHIPPED), str(model)))
        status = serve.main(["--config", str(path), "--check"])
        return status, capfd.readouterr().err

    return check


def refused(checked, model):
    status, said = checked(model)
    assert status == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


def test_whole_checkpoints_pass(tmp_path, checked):
    convert(SHIPPED, tmp_path / "nested")
    assert checked(SHIPPED) == checked(tmp_path / "nested") == (0, "")


@pytest.mark.parametrize("text", ["", "[]", "\ufeff{}"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json"])
def test_a_file_that_is_not_what_it_should_be(checked, model, file, text):
    (model / file).write_text(text, encoding="utf-8")
    assert file in refused(checked, model)
