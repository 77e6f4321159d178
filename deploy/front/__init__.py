"""The replica's own HTTP front: from the socket to vLLM's engine client and back.

    app.py        the outermost layer: which routes exist, and who answers them
    context.py    the request context: one record of a request, from its key to its last byte; the meter sums them up
    generate.py   the routes that the engine computes for: admission, errors, answers
    checks/       reads and bounds a request, and tries its grammar, before anything else sees it
    handover.py   takes a request over from vLLM's serving objects just before they would consume its outputs
    streams.py    server-sent events written straight from the engine's outputs
    replies.py    answers that are no stream, and errors in OpenAI's format

One process, one event loop: the loop that reads the engine's outputs writes them to the sockets.
"""
