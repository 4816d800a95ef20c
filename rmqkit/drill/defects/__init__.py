"""Defects planted on purpose, which drills must find (`rmqkit drill run --break NAME`)."""
