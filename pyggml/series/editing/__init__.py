"""Commands that change patches: new, edit, refresh, continue, abort, drop, move, rename, renumber."""
