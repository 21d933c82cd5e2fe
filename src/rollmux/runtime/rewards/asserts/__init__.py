"""Tests of a program that can't be trusted: they ask it, from another process, and compare what it answers."""
