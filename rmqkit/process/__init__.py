"""A node's process: settings, plug-ins, nodes and the shell, put together."""
