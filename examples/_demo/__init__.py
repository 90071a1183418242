"""The parts of `examples.demo`."""
