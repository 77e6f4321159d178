"""The Ray Serve application: replicas, ingress, and the start-up command."""

import os

# A package that vLLM's server imports sets the root logger to ERROR otherwise, and this project's warnings are lost.
os.environ.setdefault("SAGEMAKER_CONTAINER_LOG_LEVEL", "WARNING")
