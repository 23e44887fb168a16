"""A clock for virtual devices: what a timeline would take, by a model of queues, links and devices (docs/clock.md)."""

from pyggml.clock.costs import PRESETS, Costs, read_costs
from pyggml.clock.prediction import ClockSpan, ClockStep, Prediction
from pyggml.clock.replay import replay

__all__ = ["PRESETS", "ClockSpan", "ClockStep", "Costs", "Prediction", "read_costs", "replay"]
