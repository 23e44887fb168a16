"""`python -m pyggml`."""

from pyggml.cli import main

main()
