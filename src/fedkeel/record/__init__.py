"""What a run leaves behind."""

from fedkeel.record.folder import RunFolder

__all__ = ["RunFolder"]
