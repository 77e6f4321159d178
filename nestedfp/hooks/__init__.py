"""What of vLLM this project hooks into, and what of that differs in the installed version: ``python -m nestedfp.hooks``.

table.py    every hook: its name, what it must look like, why it is there
compare.py  the table against the installed vLLM
around.py   puts a function of ours around one of vLLM's
"""
