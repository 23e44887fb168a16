"""The matrix: every architecture in many configurations, each in a process of its own, compared.

from pyggml.verify.cases import Grid, expand      # what is to be run and compared with what; pure
from pyggml.verify.matrix import run_matrix       # runs it
from pyggml.verify.report import exit_code        # what it means
"""
