"""What a RAS report says, and what several say one after the other. Pure."""
