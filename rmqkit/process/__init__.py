"""The process of one or several nodes: combines settings, plug-ins, nodes and the shell."""
