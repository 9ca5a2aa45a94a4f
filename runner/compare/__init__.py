"""Runs side by side: python -m runner.compare"""
