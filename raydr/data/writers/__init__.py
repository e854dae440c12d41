"""Writers of the formats that other retrieval trainers read."""
