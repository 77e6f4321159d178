"""The replica's own HTTP front: from the socket to vLLM's engine client and back.

    app.py        the outermost layer: which routes exist, and who answers them
    generate.py   the two routes that generate: admission, pins, errors, disclosure
    streams.py    server-sent events written straight from the engine's outputs
    handover.py   takes a request over from vLLM's serving objects just before they would consume its outputs
    requests.py   reads and checks a request before anything else sees it
    effects/      refuses what vLLM would answer otherwise than asked, names what has no effect
    decoding/     answers to prompts that end inside a character, and where each token begins in the text
    faults.py     what a client hears of a request that is none
    bounds.py     what one request may ask for
    asked.py      what it asks of the engine: sequences and tokens
    deadline.py   ends a request that the engine has not begun in time
    grammars.py   tries each grammar of a structured output in a process of its own (grammar_process.py) before the engine
    replies.py    answers that are no stream, and errors in OpenAI's format
    meter.py      what a request waits for on this path, and how long

One process, one event loop: the loop that reads the engine's outputs writes them to the sockets.
"""
