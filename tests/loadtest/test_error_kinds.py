"""Errors by kind: one kind for messages that differ in numbers, and a count that leaves none out."""

from loadtest.report.error_kinds import error_kinds, most_frequent


def refused(sequences):
    message = f"overloaded: this replica computes {sequences} sequences and takes 70 at present; try again"
    return f'HTTP 429: {{"error":{{"message":"{message}","type":"overloaded","request_id":"{sequences}'  # cut off


def test_refusals_that_differ_in_their_numbers_are_one_kind():
    errors = [refused(count) for count in range(70, 170)] + ["not sent", "HTTP 500"]
    assert error_kinds(errors) == {
        "HTTP 429: overloaded: this replica computes N sequences and takes N at present; try again": 100,
        "not sent": 1,
        "HTTP 500": 1,
    }


def test_what_is_no_openai_error_keeps_its_words_without_numbers_and_ids():
    errors = [
        "cut at the end: no token for 12.5 s",
        "cut at the end: no token for 3 s",
        "HTTP 502: Bad Gateway",
        'HTTP 503: {"error": {"message": "request 0d753b10-d64f-4ee1-b289-a9dc32fa500e said \\"no\\""}}',
    ]
    assert error_kinds(errors) == {
        "cut at the end: no token for N s": 2,
        "HTTP 502: Bad Gateway": 1,
        'HTTP 503: request ID said \\"no\\"': 1,
    }


def test_a_sentence_names_the_most_frequent_kinds_and_counts_the_rest():
    kinds = {"not sent": 1, "HTTP 500": 40, "HTTP 429": 7, "no answer": 2, "cut": 1}
    assert most_frequent(kinds) == "40 x HTTP 500, 7 x HTTP 429, 2 x no answer, 2 for other reasons"
    assert most_frequent({"not sent": 3}) == "3 x not sent"
