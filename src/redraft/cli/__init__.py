"""The command line. Everything heavy is imported inside the commands, so `redraft --help` answers at once."""
