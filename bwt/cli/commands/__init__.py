"""The subcommands of `bwt`, one file each: `add_arguments(parser, argv)` and `run(arguments)`."""
