"""What this machine can do, and the command that brings each thing that is missing."""
