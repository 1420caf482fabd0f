"""The composition root: reads the configuration, wires everything, drains and stops."""
