"""Defects planted on purpose, which drills have to find (`rmqkit drill run --break NAME`)."""
