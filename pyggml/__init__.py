"""pyggml: carry, build and prove your own patches on ggml and llama.cpp."""

__version__ = "0.1.0"
