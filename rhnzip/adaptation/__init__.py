"""Exact learning while coding: the predictor whose network learns from what it has coded."""

from __future__ import annotations

from rhnzip.adaptation.predictor import LearningPredictor
from rhnzip.adaptation.settings import PARAMETER_IDS, from_parameters, to_parameters

__all__ = ["PARAMETER_IDS", "LearningPredictor", "from_parameters", "to_parameters"]
