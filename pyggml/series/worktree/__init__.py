"""The vendored work tree: what lies there, and changing it so that all of a change happens or none of it."""
