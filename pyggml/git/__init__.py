"""git, run the same way on every machine."""

from pyggml.git.runner import Git, GitError

__all__ = ["Git", "GitError"]
