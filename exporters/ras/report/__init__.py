"""The contents of RAS reports, and what successive reports show. Pure."""
