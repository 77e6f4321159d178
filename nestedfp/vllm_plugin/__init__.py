"""The vLLM plugin: everything that touches vLLM lives in this folder.

    wiring.py      checks an engine's configuration and fills in our scheduler and worker
    quant.py       the quantisation method ``nestedfp``: which layers are nested, from which kind of checkpoint
    layers.py      the two linear methods: convert a plain checkpoint while loading, or load stored planes
    scheduler.py   decides the precision of every step and attaches it to the step's SchedulerOutput
    worker.py      applies the attached precision around the model's forward pass
    exact_blocks.py  which KV blocks FP8 steps have written
    load_check.py  whether a load has set all of a model to finite values
    coverage.py    which share of a model's weights has an FP8 mode
    accounting.py  tokens computed per precision, for each request and for the engine (pure)
    serving/       a plain ``vllm serve``: pins, disclosure, metrics, directives, the SLO from the start
    package_name.py  the CPU build's package under vLLM's name
    short_logs.py  one line instead of a stack for a bad request
    frontend.py    checks the pin of a request and hands each request's token counts to the front end

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
