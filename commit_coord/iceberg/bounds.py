"""Bounds of float columns as the Iceberg spec has them, whatever the writer of the Parquet file put into its footer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType


def sound_bounds(metrics: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the *metrics* of a file with bounds by which no reader can overlook a row.

    Iceberg Java orders -0.0 before 0.0, so a file of -0.0 alone has none of 0.0 to it: zero as a lower bound is -0.0,
    as an upper one 0.0. NaN is no bound.
    """
    result = dict(metrics)
    for key, zero in (("lower_bounds", -0.0), ("upper_bounds", 0.0)):
        result[key] = {}
        for field_id, bound in (metrics.get(key) or {}).items():
            kind: Any = schema.find_type(field_id)
            value: Any = from_bytes(kind, bound) if isinstance(kind, FloatType | DoubleType) else None
            if value is None:
                result[key][field_id] = bound
            elif not math.isnan(value):
                result[key][field_id] = to_bytes(kind, zero if value == 0 else value)
    return result
