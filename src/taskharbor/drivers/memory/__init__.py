"""The memory driver: keeps jobs in the process, and is the executable specification of the driver contract."""

from taskharbor.drivers.memory.driver import MemoryDriver

__all__ = ["MemoryDriver"]
