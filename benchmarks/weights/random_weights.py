"""Random weights that leave every layer something to compute, in place of those of vLLM's load format ``dummy``.

vLLM draws all parameters from -0.001 to 0.001, norms' weights too. What a norm writes is then of the order of 0.001, the product
of an MLP's gate and up projections of 1e-10, FP16 ends at 6e-8, and the MLP's last layer multiplies zeros: a third of a Llama's
arithmetic draws hardly any power, and a GPU under its power cap runs faster than it would with any real model. Kernels gain by
it in proportion to the power that multiplying takes in them, so that engines are not even compared fairly.

Here matrices are normal with the standard deviation that published models of these families are initialised with, biases are
zeros, other vectors (norms' weights) ones, and activations keep their magnitude from layer to layer.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STANDARD_DEVIATION = 0.02  # initializer_range of the Llama, Mistral and Qwen configurations
SEED = 1234
# Workers that draw them: the value of vLLM's ``worker_cls`` for an engine with nested weights, and for any other.
NESTED_WORKER = "benchmarks.weights.random_workers.RandomNestedFPWorker"
PLAIN_WORKER = "benchmarks.weights.random_workers.RandomPlainWorker"


def install() -> None:
    """Make vLLM's load format ``dummy`` draw these weights, in this process."""
    from vllm.model_executor.model_loader import dummy_loader

    dummy_loader.initialize_dummy_weights = fill_module  # type: ignore[assignment]
    dummy_loader.initialize_single_dummy_weight = fill


def fill_module(module: "torch.nn.Module", *_: object) -> None:
    """Fill a module's own parameters; vLLM calls this for each of a model's modules."""
    for name, parameter in module.named_parameters(recurse=False):
        if name == "bias":
            parameter.data.zero_()
        else:
            fill(parameter)


def fill(parameter: "torch.Tensor") -> None:
    """Fill a parameter of floating point, the same for each of one shape; leave others, and those not there yet, alone."""
    import torch

    if parameter.device.type == "meta" or not torch.is_floating_point(parameter):
        return
    if parameter.dim() < 2:
        parameter.data.fill_(1.0)
        return
    generator = torch.Generator(parameter.device).manual_seed(SEED)
    values = parameter.data if parameter.element_size() > 1 else parameter.data.half()  # float8 has no normal_
    values.normal_(0.0, STANDARD_DEVIATION, generator=generator)
    if values is not parameter.data:
        parameter.data.copy_(values)
