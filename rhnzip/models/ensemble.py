"""Several models that predict together: the coder takes the mean of their probabilities.

An ensemble is named by its members, `a+b`. Mujika et al. 2017 average two networks so.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rhnzip.models.modelfile import Model

SEPARATOR = "+"

MAX_MEMBERS = 4
"""An archive's header may ask for networks that are drawn: this bounds what that takes."""


@dataclass(frozen=True)
class Ensemble:
    """Models whose probabilities are averaged.

    Attributes:
        members: at least two models.
    """

    members: tuple[Model, ...]

    @property
    def name(self) -> str:
        """Names of the members, in order."""
        return SEPARATOR.join(member.name for member in self.members)

    @property
    def id(self) -> bytes:
        """First 8 bytes of the SHA-256 of the word `ensemble` and the members' ids, in order."""
        return hashlib.sha256(b"ensemble" + b"".join(member.id for member in self.members)).digest()[:8]
