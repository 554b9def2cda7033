"""Makes the repository's `bench` package importable from these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
