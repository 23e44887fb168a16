"""The patch series: knows git and nothing of ggml."""
