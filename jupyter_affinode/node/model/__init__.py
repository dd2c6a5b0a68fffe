"""Frozen values that flow through the controller: settings, snapshot, actions."""
