"""What this machine can do, and the command to install each thing that is missing."""
