"""An experiment's configuration that tests change, and the tables of step costs that they predict it with."""

from pathlib import Path

import yaml

from workload.slo import Slo

SLO = Slo(ttft_ms=200, tpot_ms=33)


def settings(**changes):
    whole = {
        "name": "test",
        "shape": "llama-8b",
        "slo": {"ttft_ms": 200, "tpot_ms": 33},
        "load": {"start_s": 0, "duration_s": 10, "rates_rps": [2, 4], "seeds": [0, 1]},
        "runs": [
            {"name": "fp16", "directive": "fp16"},
            {"name": "best", "policy": {"name": "deadlines"}},
            {"name": "peer", "system": "vllm_fp8"},
        ],
    }
    return {**whole, **changes}


def written(folder, **changes):
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(settings(**changes)))
    return path


TABLE_24B = Path("simulator/engine/tables/h100-mistral-24b-steps.json")


TABLE_24B_LOAD = Path("simulator/engine/tables/h100-mistral-24b-load.json")
