"""Experiments: one command replays one load against every system and policy of a configuration, and sums up.

``python -m experiments run experiments/configs/24b-one.yaml --trace AzureLLMInferenceTrace_conv.csv``
"""
