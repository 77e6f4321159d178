"""Compares greedy tokens of two engines that compute the same products in different orders."""

TIE = 0.02  # log-probability: two steps of FP16 logits


def assert_same_greedy_tokens(run, reference):
    """The same tokens, except behind a tie.

    Both sides add the same exact products in FP32, in a different order, and round to FP16. Where two tokens are equally
    likely up to that rounding, either is right, and what follows differs.
    """
    identical = 0
    for tokens, expected, margins in zip(run["tokens"], reference["tokens"], reference["margins"], strict=True):
        first = next((i for i, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b), None)
        identical += first is None
        assert first is None or margins[first] < TIE, (
            f"token {first}: {tokens[first]} != {expected[first]} by {margins[first]}"
        )
    assert identical >= len(reference["tokens"]) // 2
