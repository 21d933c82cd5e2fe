"""Tests of a program that can't be trusted: in another process, they ask the program and compare its answers."""
