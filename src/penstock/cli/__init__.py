"""The command line. Heavy modules are imported by the command that needs them, so that `--help` is quick."""
