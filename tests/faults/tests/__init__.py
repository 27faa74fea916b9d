"""The tests of faults. The modules next to this folder run the disturbed sessions, also as commands."""
