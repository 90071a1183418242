"""The memory driver: jobs that live as long as the process, and the executable specification of the contract."""

from taskharbor.drivers.memory.driver import MemoryDriver

__all__ = ["MemoryDriver"]
