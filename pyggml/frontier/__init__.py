"""The frontier of a series: at which tree of a ladder each patch stops applying, compiling or passing its proof."""
