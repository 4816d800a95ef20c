"""Forks the Python processes of Spark from one that has their imports done."""
