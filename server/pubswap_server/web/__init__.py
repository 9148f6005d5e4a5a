"""The dashboard at `/`: pages for people, of the same views that the JSON interface gives."""
