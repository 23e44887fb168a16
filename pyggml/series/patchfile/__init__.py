"""Patch files: diffs, mails, other tools' formats, and where each hunk belongs."""
