"""Journaled questions asked again offline: of the same model, of another, in other words."""
