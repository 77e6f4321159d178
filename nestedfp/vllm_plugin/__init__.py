"""The vLLM plugin: everything that touches vLLM lives in this folder.

    wiring.py      checks an engine's configuration and fills in our scheduler and worker
    weights/       the quantisation method ``nestedfp``: nested layers and experts, the choice of their kernels
    loading/       whether a load has set all of a model to finite values
    scheduling/    decides the precision of every step, attaches it to the SchedulerOutput, counts tokens
    ranks/         applies the attached precision around the model's forward pass; CUDA graphs, timing, self-check
    frontend.py    checks requests, and hands their token counts to the front end
    serving/       a plain ``vllm serve``: pins, disclosure, metrics, directives, the SLO from the start
    lora/          adapters
    evaluation/    the engines of ``nestedfp eval``

vLLM calls ``register`` in every process that it starts: front end, engine core and workers.
"""

import logging


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``. Idempotent, cheap, and does not touch CUDA.

    It runs in every engine's processes, also where nobody asked for nestedfp, so it takes none of them down: what goes wrong
    here is a warning, and ``quantization="nestedfp"`` is then a name that vLLM does not know.
    """
    try:
        from nestedfp.vllm_plugin import short_logs, wiring
        from nestedfp.vllm_plugin.weights import quant

        short_logs.install()
        quant.register_method()
        wiring.install()
    except Exception as error:
        logging.getLogger("vllm.nestedfp").warning(
            "the nestedfp plugin is off, everything else runs: %s: %s", type(error).__name__, error
        )
