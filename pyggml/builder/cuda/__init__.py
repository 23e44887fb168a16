"""CUDA for a build: which toolkit, which architectures, and everything that can be refused before compiling."""
