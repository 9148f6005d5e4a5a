"""The dashboard at `/`: HTML pages of the views that the JSON API returns."""
