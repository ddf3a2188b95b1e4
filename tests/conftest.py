"""What all tests share."""

from __future__ import annotations

import os

# The networks of the tests are small: torch's threads would wait for each other longer than they work. Set
# before torch is imported, and for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
