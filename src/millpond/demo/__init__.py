"""The demo: an application, two workers, a load, and a crash that loses nothing."""
