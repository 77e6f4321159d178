"""Makes engine configurations and prints what came of each as JSON; the tests start it as a process.

Standard input: {name: {"args": {arguments of EngineArgs}, "env": {...}}}. Standard output, last line: {name: message or parts}.
"""

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")


def main() -> None:
    """Run all cases in one process."""
    from vllm.engine.arg_utils import EngineArgs

    results = {}
    for name, case in json.load(sys.stdin).items():
        os.environ.update(case.get("env", {}))
        try:
            config = EngineArgs(
                **{"quantization": "nestedfp", "dtype": "float16", **case["args"]}
            ).create_engine_config()
            results[name] = {
                "scheduler_cls": config.scheduler_config.scheduler_cls,
                "worker_cls": config.parallel_config.worker_cls,
                "options": config.additional_config.get("nestedfp"),
            }
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
        for key in case.get("env", {}):
            del os.environ[key]
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
