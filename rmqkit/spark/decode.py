"""Message records to Arrow columns, without a Python object per message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa


def record_batch(buffer: object, starts: np.ndarray, names: Sequence[str], constants: Mapping[str, str]) -> pa.RecordBatch:
    """The records that start at `starts` of `buffer` as rows of these columns; `constants` has the text of a column that
    is the same for all (topic, broker, read_from)."""
    raise NotImplementedError
