"""The demonstration model's tokenizer and chat template. Run: pytest tests/checkpoints/test_models.py"""

import pytest
from processes import ROOT

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(ROOT / "models" / "fairytales-8m")


@pytest.mark.parametrize("line", ["There was a fox.", "Ça coûte  2 €\n\n\tnaïve 漢字 🦊", " leading and trailing "])
def test_tokenizer_gives_any_text_back(tokenizer, line):
    ids = tokenizer(line).input_ids
    assert ids[0] == tokenizer.bos_token_id == tokenizer.eos_token_id == 0
    assert tokenizer.decode(ids, skip_special_tokens=True) == line


def test_chat_template_makes_a_story_of_the_messages(tokenizer):
    chat = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": " There was a fox. "},
        {"role": "assistant", "content": "It was red"},
        {"role": "user", "content": "One day the fox"},
    ]
    begins = [
        tokenizer.apply_chat_template(part, tokenize=False, add_generation_prompt=True) for part in (chat, chat[:2])
    ]
    assert begins == [
        f"{tokenizer.bos_token}There was a fox.\nIt was red\nOne day the fox",
        f"{tokenizer.bos_token}There was a fox.\n",
    ]
