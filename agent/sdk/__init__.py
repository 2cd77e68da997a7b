"""What an exporter may import, by purpose: docs are in each module, in the order in which an author needs them."""
