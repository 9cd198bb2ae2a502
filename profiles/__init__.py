"""Profiles that come with wq: one YAML file a model (`wq_cli.profile` reads them)."""
