"""Makes engine configurations and prints what came of each as JSON; the tests start it as a process.

Standard input: {name: {"args": {arguments of EngineArgs}, "capability": [major, minor], "built": bool, "serves": bool}},
the last three if wanted.
Standard output, last line: {name: message or parts}.
"""

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")


def main() -> None:
    """Run all cases in one process."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability
    from vllm.usage.usage_lib import UsageContext

    from nestedfp.kernels import gpu_kernels

    real_capability = type(current_platform).get_device_capability
    results = {}
    for name, case in json.load(sys.stdin).items():
        fake = DeviceCapability(*case["capability"]) if "capability" in case else None
        gpu_kernels.is_built = lambda case=case: case.get("built", True)
        type(current_platform).get_device_capability = (lambda *_, fake=fake: fake) if fake else real_capability
        try:
            context = UsageContext.OPENAI_API_SERVER if case.get("serves") else None
            config = EngineArgs(**{"quantization": "nestedfp", **case["args"]}).create_engine_config(context)
            results[name] = {
                "scheduler_cls": config.scheduler_config.scheduler_cls,
                "worker_cls": config.parallel_config.worker_cls,
                "options": config.additional_config.get("nestedfp"),
                "pdl": config.compilation_config.inductor_compile_config.get("triton.enable_pdl"),
            }
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
