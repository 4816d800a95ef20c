"""The controller: decides which broker of a set is master, and knows who has every message."""
