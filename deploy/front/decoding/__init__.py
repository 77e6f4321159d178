"""How the text of an answer and its tokens belong together, where vLLM has it wrong."""
