"""Trained policies without JAX: python -m runner.export"""
