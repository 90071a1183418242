"""Store drivers. All of them implement the contract in `taskharbor.drivers.base`."""
