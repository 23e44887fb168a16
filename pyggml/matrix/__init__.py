"""The matrix: every architecture in many configurations, each in a process of its own, compared.

from pyggml.matrix.cases import Grid, expand      # what is to be run and compared with what; pure
from pyggml.matrix.run import run_matrix       # runs it
from pyggml.matrix.report import exit_code        # what it means
"""
