"""The vLLM plugin: everything that touches vLLM lives in this folder.

    wiring.py      checks an engine's configuration and fills in our scheduler and worker
    quant.py       the quantisation method ``nestedfp``: which layers are nested, from which kind of checkpoint
    layers.py      the two linear methods: convert a plain checkpoint while loading, or load stored planes
    scheduler.py   decides the precision of every step and attaches it to the step's SchedulerOutput
    worker.py      applies the attached precision around the model's forward pass
    accounting.py  tokens computed per precision, for each request and for the engine (pure)
    frontend.py    checks the pin of a request and hands each request's token counts to the front end

vLLM calls ``register`` in every process that it starts: front end, engine core and workers.
"""


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``. Idempotent, cheap, and does not touch CUDA."""
    from nestedfp.vllm_plugin import quant, wiring

    quant.register_method()
    wiring.install()
