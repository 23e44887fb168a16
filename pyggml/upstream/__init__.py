"""Pinned upstream sources: what they are, where they come from, and their snapshots in a repository."""
