"""Everything that an exporter may import, by purpose; each module documents its names in the order of use."""
