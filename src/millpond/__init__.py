"""A durable background job queue on one SQLite file."""
