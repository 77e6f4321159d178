"""Two engines of a dense model behind a plain ``vllm serve``, each with an API server: one directive is for both."""

import re

import pytest
from test_vllm_serve import ask, directed, served

pytestmark = [pytest.mark.serve, pytest.mark.filterwarnings("ignore")]


def test_a_directive_reaches_both_engines_and_no_header_says_what_another_server_was_not_told(tmp_path_factory):
    with served(tmp_path_factory.mktemp("dp"), "--data-parallel-size", "2") as client:
        for mode, precision in (("fp8", "fast"), ("fp16", "exact")):
            with directed(client, {"mode": mode}):
                answers = [ask(client, max_tokens=1) for _ in range(4)]
                asked = ask(client, max_tokens=1, precision="exact")
            assert {answer.json()["usage"]["precision"] for answer in answers} == {precision}
            assert {answer.headers["x-nestedfp-precision"] for answer in answers} == {"auto"}
            assert (asked.headers["x-nestedfp-precision"], asked.json()["usage"]["precision"]) == ("exact", "exact")
        served_by = re.findall(
            r'^vllm:request_success_total{.*engine="(\d)".*} [1-9]', client.get("/metrics").text, re.M
        )
        assert set(served_by) == {"0", "1"}
