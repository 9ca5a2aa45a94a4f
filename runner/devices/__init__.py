"""Devices, compiled programs, memory and hosts."""
