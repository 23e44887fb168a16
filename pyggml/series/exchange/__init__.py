"""The series for others and from others: export, import, verify, range-diff."""
