"""Figures for Prometheus."""
