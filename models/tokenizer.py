"""A byte-level BPE tokenizer, and the Hugging Face files that describe it.

Every byte is in the vocabulary, so any prompt can be encoded and no unknown token is needed.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from models.text import END_TOKEN

# The model only continues stories, so a chat becomes one: system messages are dropped and the others follow each other
# as paragraphs. A last message that ends a sentence gets a new paragraph after it; any other is continued in place.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{%- for message in messages if message['role'] != 'system' %}"
    "{%- set text = message['content'] | trim %}"
    "{{ text }}"
    "{%- if not loop.last or text[-1:] in ['.', '!', '?', '\"', ':'] %}{{ '\\n' }}{% endif %}"
    "{%- endfor %}"
)


def train_tokenizer(lines: list[str], vocab_size: int) -> Tokenizer:
    """Learns at most `vocab_size` tokens, 256 bytes and the end token among them. Encoding puts the end token first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"{line}\n" for line in lines if line], trainer)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{END_TOKEN} $A",
                pair=f"{END_TOKEN} $A $B",
                special_tokens=[(END_TOKEN, tokenizer.token_to_id(END_TOKEN))],
            ),
        ]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path, max_length: int) -> None:
    """Writes tokenizer.json and tokenizer_config.json; `max_length` is the model's context in tokens."""
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_TOKEN,
        "eos_token": END_TOKEN,
        "pad_token": END_TOKEN,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
