"""Building the patched work tree: plan, toolchain, CMake and Ninja, the record, the check."""
