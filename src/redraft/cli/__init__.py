"""The command line. Everything heavy is imported inside the commands, so that `redraft --help` answers at once."""
