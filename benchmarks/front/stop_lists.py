"""What the stop strings of a request cost each of its tokens: vLLM compares the text with every one of them.

    python -m benchmarks.front.stop_lists

Prints microseconds of processor time per token, for lists up to what vLLM and deploy/front/checks/bounds.py let in.
"""

import random
import string
import time

from deploy.front.checks.bounds import MOST_STOP_CHARACTERS

TEXT_CHARACTERS, NEW_CHARACTERS = 4000, 5  # of the answer so far, and of the token
TOKENS = 20_000


def us_per_token(strings: int, characters: int) -> float:
    """Return the time for one token, with so many stop strings of so many characters that do not occur."""
    from vllm.v1.engine.detokenizer import check_stop_strings

    rng = random.Random(0)
    text = "".join(rng.choices(string.ascii_lowercase + " ", k=TEXT_CHARACTERS))
    stops = ["".join(rng.choices(string.ascii_lowercase, k=characters)) for _ in range(strings)]
    began_s = time.process_time()
    for _ in range(TOKENS):
        check_stop_strings(text, NEW_CHARACTERS, stops, False)
    return (time.process_time() - began_s) / TOKENS * 1e6


def main() -> None:
    """Print a line for each kind of list."""
    from vllm import envs

    most = envs.VLLM_MAX_STOP_STRINGS
    print("strings  characters  us/token")
    for strings, characters in ((0, 0), (1, 8), (most, 8), (most, MOST_STOP_CHARACTERS // most)):
        print(f"{strings:7}  {characters:10}  {us_per_token(strings, characters):8.1f}")


if __name__ == "__main__":
    main()
