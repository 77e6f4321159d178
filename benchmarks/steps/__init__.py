"""A worker that logs the steps of an engine for the simulator's fit."""

FOLDER_ENV = "STEP_LOG_FOLDER"  # tells the worker where
