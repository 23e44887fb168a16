"""Proving each patch: its tests on the stack without it and with it, in a private tree with its own build."""
