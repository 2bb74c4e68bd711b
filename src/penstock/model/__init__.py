"""Pure declarations and values: machines, units, outcomes, time, errors. Nothing here does I/O."""
